"""``torch.where`` whose gradient is NaN though its value is finite; see ``where_gradient``.

Each ``where`` of an exported program is tried: the elementwise operators before it are evaluated
and differentiated at a few values of what enters them. It is evidence, and no proof.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  (an extra; imported by nobody without it)

from voxax.check.findings import Finding
from voxax.check.source import Site, library_of, place, site_of_line
from voxax.check.torch_watch import Operation

_ANY, _NOT_NEGATIVE, _POSITIVE = range(3)
_PROBES = {_ANY: (0.0, 1.0, -1.0, 0.5), _NOT_NEGATIVE: (0.0, 1.0, 0.5), _POSITIVE: (1.0, 0.5)}
# Inputs of one expression that are tried together, and operators in it.
_MOST_INPUTS = 3
_MOST_OPERATORS = 64

# Their slope is infinite or NaN somewhere: only expressions with one of them are tried.
_SINGULAR = {
    "sqrt", "rsqrt", "log", "log1p", "log2", "log10", "div", "reciprocal", "pow", "acos", "asin",
    "atanh", "acosh", "atan2", "xlogy",
}  # fmt: skip
_CHOICES = {"where", "masked_fill"}
_ELEMENTWISE = _CHOICES | _SINGULAR | {
    "add", "sub", "rsub", "mul", "neg", "abs", "sign", "maximum", "minimum", "exp", "expm1", "tanh",
    "sin", "cos", "tan", "sigmoid", "square", "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt",
    "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or",
    "bitwise_not", "isnan", "isfinite", "isinf", "relu", "erf", "sinh", "cosh", "asinh", "atan",
    "detach", "clone", "to", "_to_copy", "nan_to_num", "floor", "ceil", "round",
}  # fmt: skip
# They do not change values, and single values have no shape to change.
_RESHAPES = {"expand", "unsqueeze", "squeeze", "view", "reshape", "alias", "contiguous", "detach_"}

# About signs only.
_MAKE_POSITIVE = {"exp", "sigmoid", "softmax", "softplus", "cosh", "ones", "ones_like", "rsqrt"}
_MAKE_NOT_NEGATIVE = {
    "abs", "relu", "square", "sqrt", "norm", "linalg_vector_norm", "linalg_norm", "var", "std",
    "argmax", "arange", "zeros", "zeros_like",
}  # fmt: skip
_SAME = _RESHAPES | {
    "sum", "mean", "amax", "amin", "select", "slice", "transpose", "permute", "clone", "to",
    "_to_copy", "cumsum", "index_select", "t", "flatten", "detach", "getitem", "max", "min",
}  # fmt: skip
_OPERANDS = {"mul", "div", "cat", "stack", "minimum", "mm", "matmul", "bmm"}


def unsafe(
    program: Any, operations: Sequence[Operation], own: str | None, site: Site
) -> list[Finding]:
    """A finding for every ``where`` with a gradient that can be NaN.

    Args:
      program: what ``torch.export`` made.
      operations: what ran when the module was watched, which knows the places.
      own: the library that the module is part of.
      site: where the module's ``forward`` is defined.
    """
    found = []
    choices = [node for node in program.graph.nodes if _name(node) in _CHOICES]
    ran = [o.frames for o in operations if _operator(o.structure[0]) in _CHOICES]
    known = ran if len(ran) == len(choices) else [()] * len(choices)
    for node, frames in zip(choices, known, strict=True):
        if not _is_float(node):
            continue
        inputs, steps = _expression(node)
        if not 0 < len(inputs) <= _MOST_INPUTS or not {_name(s) for s in steps} & _SINGULAR:
            continue
        bad = _counterexample(inputs, steps)
        if bad is None:
            continue
        where = place(frames, own)
        found.append(
            Finding(
                "VX307",
                where.site if where is not None else _noted(node, own) or site,
                f"the value is finite and its gradient is NaN where an operand is {bad:g}",
                fix="make the operand safe first: torch.where(ok, f(torch.where(ok, x, 1.0)), 0.0)",
                callers=where.callers if where is not None else (),
            )
        )
    return found


def _operator(name: str) -> str:
    """``where`` for ``aten::where.self``."""
    return name.split("::")[-1].split(".")[0].rstrip("_")


def _name(node: Any) -> str:
    """``sqrt`` for ``aten.sqrt.default``; also of the variant that writes in place."""
    packet = getattr(node.target, "overloadpacket", None)
    name = getattr(packet, "__name__", "") or getattr(node.target, "__name__", "")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _is_float(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _operands(node: Any) -> list[Any]:
    return [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]


def _expression(choice: Any) -> tuple[list[Any], list[Any]]:
    """The elementwise operators before a ``where``: their inputs, and themselves in order."""
    inputs: list[Any] = []
    steps: list[Any] = []
    done: set[Any] = set()

    def visit(node: Any) -> None:
        if node in done:
            return
        done.add(node)
        known = node.op == "call_function" and _name(node) in _ELEMENTWISE | _RESHAPES
        if not known or len(done) > _MOST_OPERATORS:
            inputs.append(node)
            return
        for operand in _operands(node):
            visit(operand)
        steps.append(node)

    visit(choice)
    return inputs, steps


def _counterexample(inputs: Sequence[Any], steps: Sequence[Any]) -> float | None:
    """A value of one input that makes the gradient NaN and not the result."""
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
    value = node.meta.get("val")
    if value.dtype is torch.bool:
        return (False, True)
    return _PROBES[_sign(node, 40)]


def _sign(node: Any, depth: int) -> int:
    """What the operators that made a value say about its sign."""
    if isinstance(node, int | float):
        return _POSITIVE if node > 0 else _NOT_NEGATIVE if node == 0 else _ANY
    if not isinstance(node, torch.fx.Node) or depth == 0 or node.op != "call_function":
        return _ANY
    name, args = _name(node), node.args
    if name in _MAKE_POSITIVE:
        return _POSITIVE
    if name in _MAKE_NOT_NEGATIVE:
        return _NOT_NEGATIVE
    if name in _SAME:
        return _sign(args[0], depth - 1)
    given = [*args, *(v for k, v in node.kwargs.items() if k in ("min", "other"))]
    parts = itertools.chain.from_iterable(a if isinstance(a, list | tuple) else (a,) for a in given)
    signs = [_sign(part, depth - 1) for part in parts if part is not None]
    if name == "mul" and len(args) == 2 and args[0] is args[1]:
        return max(_NOT_NEGATIVE, *signs)
    if name == "pow" and isinstance(args[1], int | float) and args[1] % 2 == 0:
        return _NOT_NEGATIVE
    if name in _OPERANDS:
        return min(signs, default=_ANY)
    if name in ("clamp", "clamp_min", "maximum"):
        return max(signs, default=_ANY)
    if name == "add":
        least = min(signs, default=_ANY)
        return max(signs) if least >= _NOT_NEGATIVE else _ANY
    return _ANY


def _noted(node: Any, own: str | None) -> Site | None:
    """The user's line in the stack that PyTorch noted, where that has one."""
    places = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    for file, line in reversed(places):
        owner = library_of(file)
        if owner is None or owner == own:
            return site_of_line(file, int(line), "where")
    return None
