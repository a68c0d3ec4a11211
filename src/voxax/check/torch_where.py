"""Find ``torch.where`` with a finite value and a NaN gradient; see ``where_gradient``.

Each ``where`` of an exported program is tried: the elementwise operators before it are evaluated
and differentiated at a few values of what enters them. It is evidence, and no proof.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra)

from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.source import Site, library_of, place, site_of_line
from voxax.check.torch_watch import Operation
from voxax.check.where_gradient import (
    ELEMENTWISE,
    MOST_INPUTS,
    SINGULAR,
    Sign,
    expression,
    sign_of,
)

_CHOICES = {"where", "masked_fill"}
_ELEMENTWISE = ELEMENTWISE | _CHOICES | {
    "rsub", "maximum", "minimum", "sigmoid", "clamp_min", "clamp_max", "logical_and", "logical_or",
    "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isfinite", "isinf",
    "relu", "detach", "clone", "to", "_to_copy", "nan_to_num",
}  # fmt: skip
# They do not change values, and single values have no shape to change.
_RESHAPES = {"expand", "unsqueeze", "squeeze", "view", "reshape", "alias", "contiguous", "detach_"}


def unsafe(
    program: Any, operations: Sequence[Operation], own: str | None, site: Site
) -> list[Finding]:
    """Report every ``where`` with a gradient that can be NaN.

    What ran when the module was watched knows the places; `site` is where it is defined.
    """
    found = []
    choices = [node for node in program.graph.nodes if _name(node) in _CHOICES]
    ran = [o.frames for o in operations if _operator(o.structure[0]) in _CHOICES]
    known = ran if len(ran) == len(choices) else [()] * len(choices)
    for node, frames in zip(choices, known, strict=True):
        if not _is_float(node):
            continue
        inputs, steps = expression(node, _is_followed, _operands)
        if not 0 < len(inputs) <= MOST_INPUTS or not {_name(s) for s in steps} & SINGULAR:
            continue
        bad = _counterexample(inputs, steps)
        if bad is None:
            continue
        found.append(
            Finding.at(
                place(frames, own) or noted(node, own) or site,
                "VX307",
                f"the value is finite and its gradient is NaN where an operand is {bad:g}",
                ADVICE["torch VX307"],
            )
        )
    return found


def _operator(name: str) -> str:
    """Return ``where`` for ``aten::where.self``."""
    return name.split("::")[-1].split(".")[0].rstrip("_")


def _name(node: Any) -> str:
    """Return ``sqrt`` for ``aten.sqrt.default``, and for the variant that writes in place."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "") or getattr(node.target, "__name__", "")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _is_float(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_followed(node: Any) -> bool:
    return node.op == "call_function" and _name(node) in _ELEMENTWISE | _RESHAPES


def _operands(node: Any) -> list[Any]:
    return [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]


def _counterexample(inputs: Sequence[Any], steps: Sequence[Any]) -> float | None:
    """Return a value of one input that makes the gradient NaN and not the result."""
    floats = [i for i, node in enumerate(inputs) if _is_float(node)]
    for probe in itertools.product(*map(_probes, inputs)):
        given = [torch.tensor(v, requires_grad=i in floats) for i, v in enumerate(probe)]
        try:
            with torch.enable_grad():
                result = _evaluate(inputs, steps, given)
            if not math.isfinite(float(result.detach())) or not result.requires_grad:
                continue
            roots = [given[i] for i in floats]
            for i, slope in zip(
                floats, torch.autograd.grad(result, roots, allow_unused=True), strict=True
            ):
                if slope is not None and math.isnan(float(slope)):
                    return float(probe[i])
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            return None  # an operator that is not one of single values after all
    return None


def _evaluate(inputs: Sequence[Any], steps: Sequence[Any], given: Sequence[Any]) -> Any:
    known = dict(zip(inputs, given, strict=True))
    for node in steps:
        if _name(node) in _RESHAPES:
            known[node] = known[node.args[0]]
            continue
        args = torch.fx.map_arg(node.args, lambda n: known[n])
        kwargs = torch.fx.map_arg(node.kwargs, lambda n: known[n])
        if _name(node) in ("to", "_to_copy"):
            wide = _is_float(node)
            known[node] = args[0].float() if wide else args[0].to(node.meta["val"].dtype)
            continue
        target = node.target
        if str(target).split(".")[-2].endswith("_"):
            args = (args[0].clone(), *args[1:])
        known[node] = target(*args, **kwargs)
    return known[steps[-1]]


def _probes(node: Any) -> Sequence[Any]:
    if node.meta["val"].dtype is torch.bool:
        return (False, True)
    return sign_of(node, _made_by).probes


def _made_by(node: Any) -> Sign | tuple[str, Sequence[Any]]:
    if isinstance(node, int | float):
        return Sign.POSITIVE if node > 0 else Sign.NOT_NEGATIVE if node == 0 else Sign.ANY
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return Sign.ANY
    name, args = _name(node), node.args
    if name == "mul" and len(args) == 2 and args[0] is args[1]:
        return "even power", args
    if name == "pow" and isinstance(args[1], int | float) and args[1] % 2 == 0:
        return "even power", args
    if name in ("max", "min"):  # of one operand, along an axis
        return "first", args
    if name == "clamp":
        value, low, high = (*args, *(node.kwargs.get(k) for k in ("min", "max")[len(args) - 1 :]))
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        return "clamp", (low, value, high)
    given = [*args, *(v for k, v in node.kwargs.items() if k in ("min", "other"))]
    parts = itertools.chain.from_iterable(a if isinstance(a, list | tuple) else (a,) for a in given)
    return name, [part for part in parts if part is not None]


def noted(node: Any, own: str | None, called: str = "where") -> Site | None:
    """Return the user's line in the stack that PyTorch noted of a node, where that has one.

    The call in that line of the function `called` is meant.
    """
    places = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    for file, line in reversed(places):
        owner = library_of(file)
        if owner is None or owner == own:
            return site_of_line(file, int(line), called)
    return None
