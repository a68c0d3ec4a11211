"""Really export a PyTorch module, over several inputs of equal shape, and count the programs.

The exported program is then lowered to XLA through torchax and compiled, where that imports.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from typing import Any

import jax
import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)

from voxax.check.arguments import Arguments
from voxax.check.codes import Verdict
from voxax.check.report import Report
from voxax.check.torch_pass import exported
from voxax.check.verify import INPUTS, Verification


@dataclasses.dataclass(frozen=True)
class TorchVerification(Verification):
    """What exporting showed.

    Attributes:
      lowering: what lowering to XLA showed, or why there is no such confirmation.
      lowered: how many programs XLA compiled; None where it was not asked.
    """

    lowering: str = ""
    lowered: int | None = None

    def __str__(self) -> str:
        if self.error is not None:
            state = "verified" if self.holds else "NOT verified"
            return f"{state}: torch.export: {self.error}"
        return f"{super().__str__()}; {self.lowering}"


def verify(report: Report) -> TorchVerification:
    """Export the module for five inputs; a static one has the same program for each."""
    arguments: Arguments = report.arguments
    held = frozenset(report.static_arguments) & arguments.numbers()
    may = report.verdict in (Verdict.STATIC, Verdict.PER_VALUE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Numbers that only are computed with are inputs of the program; where PyTorch has no
        # operator for that, they are constants, and stay the same.
        found = _exports(report, held)
        if (found.error or found.sized) and held != arguments.numbers():
            found = _exports(report, arguments.numbers())
        if found.error is not None:
            return TorchVerification(INPUTS, len(found.graphs), found.error, not may)
        if found.sized:
            text = "a value of a tensor is read"
            return TorchVerification(INPUTS, len(found.graphs), text, not may)
        lowering, lowered, wrong = _lower(found.program, found.inputs)
    holds = may and len(found.graphs) == 1 and not wrong and lowered in (1, None)
    return TorchVerification(INPUTS, len(found.graphs), None, holds, lowering, lowered)


@dataclasses.dataclass
class _Exports:
    """What exporting for each of the inputs gave."""

    inputs: list[list[Any]]
    graphs: set[str]
    program: Any = None
    error: str | None = None
    sized: bool = False


def _exports(report: Report, held: frozenset[str]) -> _Exports:
    inputs = [inputs_of(report.arguments, held, seed) for seed in range(INPUTS)]
    found = _Exports(inputs, set())
    for values in inputs:
        found.program, error = exported(report.subject, report.arguments, values)
        if error is not None:
            text = (str(error).strip().splitlines() or [""])[0]
            found.error = f"{type(error).__name__}: {text}"
            return found
        found.graphs.add(_text(found.program))
    found.sized = any(_is_sized(node) for node in found.program.graph.nodes)
    return found


def _is_sized(node: Any) -> bool:
    """Whether a node of the program reads a value, or makes a size of one."""
    target = node.target
    tags = getattr(target, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return True
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return any(
        isinstance(size, torch.SymInt)
        for v in values
        if isinstance(v, torch.Tensor)
        for size in v.shape
    )


def _text(program: Any) -> str:
    """What makes the program: its operators with all their constants."""
    constants = {k: v.tolist() for k, v in program.constants.items() if hasattr(v, "tolist")}
    return f"{program.graph}{[str(n.meta.get('val')) for n in program.graph.nodes]}{constants}"


def inputs_of(arguments: Arguments, held: frozenset[str], seed: int) -> list[Any]:
    """Leaves for one of several runs: numbers that only are computed with are tensors."""
    return [_vary(leaf, held, seed) for leaf in arguments.leaves]


def _vary(leaf: Any, held: frozenset[str], seed: int) -> Any:
    """The example's own values in another order and scaled; integers stay, as indices must."""
    value = leaf.value
    if leaf.kind == "number" and leaf.name not in held:
        return torch.tensor(value if isinstance(value, bool) else value + seed)
    if leaf.kind != "tensor":
        return value
    plain = value.detach().clone()
    if seed and plain.is_floating_point():
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(plain.numel(), generator=generator)
        plain = plain.reshape(-1)[order].reshape(plain.shape) * (1 + seed / 16)
    return plain.requires_grad_(value.requires_grad)


def _lower(program: Any, inputs: list[list[Any]]) -> tuple[str, Any, bool]:
    """Compile the exported program with XLA.

    Returns:
      ``(in words, programs or None, whether it contradicts)``.
    """
    try:
        bridge = importlib.import_module("torchax.export")
        interop = importlib.import_module("torchax.ops.mappings")
    except Exception as error:  # it has to fit the version of PyTorch
        text = (str(error).strip().splitlines() or [""])[0]
        return f"lowering to XLA unconfirmed: torchax does not import ({text})", None, False
    compiled = 0
    try:
        weights, function = bridge.exported_program_to_jax(program)

        def counted(weights: Any, given: Any) -> Any:
            nonlocal compiled
            compiled += 1  # Python runs only when a program is made
            return function(weights, given)

        jitted = jax.jit(counted)
        for values in inputs:
            tensors = [v for v in values if isinstance(v, torch.Tensor)]
            given = tuple(interop.t2j(v.detach()) for v in tensors)
            jax.block_until_ready(jitted(weights, given))
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        return f"lowering to XLA raises {type(error).__name__}: {text}", compiled, True
    plural = "s" if compiled != 1 else ""
    return f"lowered to XLA: {compiled} program{plural}", compiled, compiled != 1
