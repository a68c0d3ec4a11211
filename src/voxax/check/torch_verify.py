"""Verify a report on a PyTorch module by exporting the module for several inputs of equal shape.

Different exports count as different programs. The last exported program runs on all inputs, its
results are compared with those of the module, and it is lowered to XLA if torchax can be imported.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]  (an extra)
from torch._subclasses.fake_tensor import FakeTensor  # pyright: ignore[reportMissingImports]
from torch.utils._pytree import tree_leaves  # pyright: ignore[reportMissingImports]

from voxax.check.findings import Verdict
from voxax.check.programs import INPUTS, Verification, vary
from voxax.check.source import described
from voxax.check.static_report import Report
from voxax.check.subject import Arguments
from voxax.check.torch_check import is_sized, nodes_of
from voxax.check.torch_runs import copied, exported


@dataclasses.dataclass(frozen=True)
class TorchVerification(Verification):
    """The result of exporting a module for several inputs.

    Attributes:
      lowering: the result of lowering to XLA in words, or the reason why it is unconfirmed.
      lowered: the number of programs that XLA compiled; None if lowering is unconfirmed.
      served: whether the program and the module have the same results for every input; None if the
        results are not comparable, for example because of random numbers.
    """

    lowering: str = ""
    lowered: int | None = None
    served: bool | None = None

    def __str__(self) -> str:
        if self.error is not None:
            state = "verified" if self.holds else "NOT verified"
            return f"{state}: torch.export: {self.error}"
        served = {True: "; it computes what the module does", None: ""}
        other = "; it computes something else than the module"
        return f"{super().__str__()}{served.get(self.served, other)}; {self.lowering}"


def verify(report: Report) -> TorchVerification:
    """Export the module for five inputs; compare programs and results with the report's verdict."""
    arguments: Arguments = report.arguments
    held = frozenset(report.static_arguments) & arguments.numbers()
    may = report.verdict in (Verdict.STATIC, Verdict.PER_VALUE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Numbers that are only computed with are inputs of the program. If PyTorch has no operator
        # for that, they are constants and stay the same.
        found = _exports(report, held)
        if (found.error or found.sized) and held != arguments.numbers():
            found = _exports(report, arguments.numbers())
            if may and found.error is None and not _same_for_others(report, held):
                text = "another value of a Python number gives another program"
                return TorchVerification(INPUTS, len(found.graphs), text, False)
        if found.error is not None:
            return TorchVerification(INPUTS, len(found.graphs), found.error, not may)
        if found.sized:
            text = "a value of a tensor is read"
            return TorchVerification(INPUTS, len(found.graphs), text, not may)
        frozen = any(f.code == "VX205" for f in report.findings)
        served = None if frozen else _serves(report, found)
        lowering, lowered, wrong = _lower(found.program, found.inputs)
    holds = may and len(found.graphs) == 1 and not wrong and lowered in (1, None)
    holds = holds and served is not False
    return TorchVerification(
        INPUTS, len(found.graphs), None, holds, lowering=lowering, lowered=lowered, served=served
    )


@dataclasses.dataclass
class _Exports:
    """The results of exporting a module for several inputs.

    `inputs` has the leaves of each input. `graphs` has the different programs as texts, and
    `program` is the last one. `error` is the text of an export's error, or None. `sized` is whether
    the last program reads values, or has sizes that depend on values.
    """

    inputs: list[list[Any]]
    graphs: set[str]
    program: Any = None
    error: str | None = None
    sized: bool = False


def _exports(report: Report, held: frozenset[str]) -> _Exports:
    inputs = [inputs_of(report.arguments, held, seed) for seed in range(INPUTS)]
    found = _Exports(inputs, set())
    frozen = any(f.code == "VX205" for f in report.findings)
    for values in inputs:
        with _seeded():
            found.program, error = exported(report.subject, report.arguments, values)
        if error is not None:
            found.error = described(error)
            return found
        found.graphs.add(_text(found.program, frozen))
    found.sized = any(map(is_sized, nodes_of(found.program)))
    return found


def _same_for_others(report: Report, held: frozenset[str]) -> bool:
    """Return True if exports for other values of the Python numbers differ only in constants.

    Numbers named in `held` keep their values.
    """
    arguments: Arguments = report.arguments
    texts = set()
    for seed in range(INPUTS):
        values = [
            vary(leaf.value, seed)
            if leaf.kind == "number" and leaf.name not in held
            else leaf.value
            for leaf in arguments.leaves
        ]
        with _seeded():
            program, error = exported(report.subject, arguments, values)
        if error is not None:
            return False
        texts.add(_text(program, True))
    return len(texts) == 1


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Return a context in which Python and NumPy draw the same random numbers every time."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the generator that models use)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _serves(report: Report, found: _Exports) -> bool | None:
    """Return True if the exported program and the module have equal results for all inputs.

    None means unknown: the program draws random numbers, or a constant of it has no values.
    """
    targets = [node.target for node in found.program.graph.nodes]
    if any(torch.Tag.nondeterministic_seeded in getattr(t, "tags", ()) for t in targets):
        return None
    program = found.program.module()
    plain = report.subject.target
    for values in found.inputs:
        module = copied(plain) if isinstance(plain, torch.nn.Module) else plain
        one, two = (
            [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            for result in (
                copy.deepcopy(report.arguments.fill(values)).call(module),
                copy.deepcopy(report.arguments.fill(values)).call(copied(program)),
            )
        )
        if any(isinstance(tensor, FakeTensor) for tensor in two):
            return None  # a constant of the program lost its values in export
        if len(one) != len(two) or not all(map(_equal, one, two)):
            return False
    return True


def _equal(one: Any, two: Any) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    scale = float(one.detach().double().abs().nan_to_num(0, 0, 0).max()) if one.numel() else 1.0
    return bool(torch.allclose(one, two, 1e-3, 1e-4 * max(1.0, scale), equal_nan=True))


def _text(program: Any, frozen: bool) -> str:
    """Return a text that is the same for equal programs: the operators with all their constants.

    If `frozen` is True, the constants are left out. This is for modules with the finding VX205,
    whose constants differ in each export.
    """
    nodes = program.graph.nodes
    if frozen:
        made = [n for n in nodes if n.op == "call_function"]
        return str([(str(n.target), n.meta.get("val")) for n in made])
    values = [str(n.meta.get("val")) for n in nodes]
    constants = {k: _listed(v) for k, v in program.constants.items() if hasattr(v, "tolist")}
    return f"{program.graph}{values}{constants}"


def _listed(constant: Any) -> Any:
    try:
        return constant.tolist()
    except RuntimeError:  # it has no values: made under a transformation, such as vmap
        return list(constant.shape)


def inputs_of(arguments: Arguments, held: frozenset[str], seed: int) -> list[Any]:
    """Return the input leaves of verification run number `seed`.

    Floating-point tensors have the example values in run 0, and are permuted and scaled in other
    runs. Python numbers that are not named in `held` become tensors, and grow with `seed`.
    """
    return [_vary(leaf, held, seed) for leaf in arguments.leaves]


def _vary(leaf: Any, held: frozenset[str], seed: int) -> Any:
    """Return the value of a leaf of the arguments for the run number `seed`.

    Floating-point tensors are permuted and scaled, except in run 0. A Python number not named in
    `held` becomes a tensor, to which `seed` is added unless it is a bool. Other values do not
    change.
    """
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
    """Compile the exported program with XLA, and run it on all inputs.

    Returns:
      ``(the result in words, the number of compiled programs or None, whether the result
      contradicts a static verdict)``.
    """
    try:
        bridge = importlib.import_module("torchax.export")
        interop = importlib.import_module("torchax.ops.mappings")
    except Exception as error:  # it has to fit the version of PyTorch
        return (
            f"lowering to XLA unconfirmed: torchax does not import ({described(error)})",
            None,
            False,
        )
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
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        return f"lowering to XLA raises {described(error)}", compiled, True
    except Exception as error:  # of the bridge, which lacks an operator or a form of one
        return f"lowering to XLA unconfirmed: torchax raises {described(error)}", None, False
    plural = "s" if compiled != 1 else ""
    return f"lowered to XLA: {compiled} program{plural}", compiled, compiled != 1
