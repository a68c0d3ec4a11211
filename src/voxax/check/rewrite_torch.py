"""Rewrites of PyTorch source that are mechanical; see ``rewrite`` for those of JAX."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from voxax.check.findings import Rewrite
from voxax.check.rewrite import (
    condition,
    defined_before,
    grouped,
    indented,
    is_simple,
    lines_of,
    loaded,
    may_fill_with_zeros,
    padding,
    reduction_of,
    same_shape,
    source,
    stored,
    value_of,
    within,
)

_TORCH = "import torch"


def branch(node: ast.If, following: Sequence[ast.stmt], function: ast.AST) -> Rewrite | None:
    """``if`` on a tensor as ``torch.where``, which computes both sides."""
    test = condition(node.test, "torch")
    if test is None:
        return None
    last = None
    other = node.orelse
    one = node.body[0] if len(node.body) == 1 else None
    after = following[0] if following else None
    if not other and isinstance(one, ast.Return) and isinstance(after, ast.Return):
        other, last = [after], after
    two = other[0] if len(other) == 1 else None
    if isinstance(one, ast.Return) and isinstance(two, ast.Return) and one.value and two.value:
        text = f"return torch.where({test}, {source(one.value)}, {source(two.value)})"
        return lines_of(node, text, _TORCH, last=last)
    names = stored([*node.body, *node.orelse])
    if len(names) != 1 or len(node.body) != 1 or len(node.orelse) > 1:
        return None
    if not (is_simple(node.body) and is_simple(node.orelse)):
        return None
    if not node.orelse and names[0] not in defined_before(function, node.lineno):
        return None
    sides = [value_of(s[0]) if s else names[0] for s in (node.body, node.orelse)]
    if not all(sides):
        return None
    return lines_of(node, f"{names[0]} = torch.where({test}, {sides[0]}, {sides[1]})", _TORCH)


def choice(node: ast.IfExp, statement: ast.stmt) -> Rewrite | None:
    """``a if test else b`` as ``torch.where``."""
    test = condition(node.test, "torch")
    if test is None:
        return None
    text = f"torch.where({test}, {source(node.body)}, {source(node.orelse)})"
    return within(statement, node, text, _TORCH)


def integer(node: ast.expr) -> str:
    """An integer expression as a tensor, without conversions to Python's numbers."""
    called = node.func if isinstance(node, ast.Call) and not node.keywords else None
    arguments = node.args if isinstance(node, ast.Call) else []
    inner = node
    if isinstance(called, ast.Name) and called.id == "int" and len(arguments) == 1:
        inner = arguments[0]
    elif isinstance(called, ast.Attribute) and called.attr == "item" and not arguments:
        inner = called.value
    return f"torch.as_tensor({source(inner)}).to(torch.int64)"


def counted(node: ast.For, function: ast.AST, example: int) -> Rewrite | None:
    """``for i in range(n)`` to a fixed bound; what the turns beyond ``n`` compute is discarded.

    The bound is a guess from the example. A count above it gives NaN, and no wrong numbers.
    """
    call = node.iter
    if not (isinstance(call, ast.Call) and len(call.args) == 1 and not node.orelse):
        return None
    if not (isinstance(call.func, ast.Name) and call.func.id == "range"):
        return None
    if not (is_simple(node.body) and isinstance(node.target, ast.Name)):
        return None
    before = defined_before(function, node.lineno)
    carried = [name for name in stored(node.body) if name in before]
    index = node.target.id if node.target.id != "_" else "turn"
    fresh = {"turns", index, *(f"{name}_before" for name in carried)} - {node.target.id}
    taken = (
        before | loaded(function) | set(stored([function]))
        if isinstance(function, ast.stmt)
        else before
    )
    if not carried or fresh & taken:
        return None
    bound = max(8, 2 << max(example - 1, 0).bit_length())
    keep = "".join(f"    {name}_before = {name}\n" for name in carried)
    choose = "".join(
        f"    {name} = torch.where({index} < turns, {name}, {name}_before)\n" for name in carried
    )
    after = "\n".join(
        f"{name} = torch.where(turns <= {bound}, {name}, torch.nan)" for name in carried
    )
    text = (
        f"turns = {integer(call.args[0])}\n"
        f"for {index} in range({bound}):  # the most turns that there may be; with more, NaN\n"
        f"{keep}{indented(node.body)}{choose}{after}"
    )
    return lines_of(node, text, _TORCH)


def bounded_slice(
    node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt
) -> Rewrite | None:
    """``x[a:b]`` at full length, with zeros for what is not in the slice.

    Only where it is returned or summed: in a mean or a maximum the zeros would count.
    """
    cut = node.slice
    if not isinstance(cut, ast.Slice) or cut.step is not None:
        return None
    if not may_fill_with_zeros(node, parents, "torch"):
        return None
    of = grouped(node.value)
    rows = f"torch.arange({of}.shape[0], device={of}.device)"
    tests = []
    for bound, compare in ((cut.lower, ">="), (cut.upper, "<")):
        if bound is not None:
            # Python counts negative bounds from the end.
            at = integer(bound)
            tests.append(f"({rows} {compare} {at} + ({at} < 0) * {of}.shape[0])")
    mask = " & ".join(tests)
    text = f"torch.where(({mask}).reshape(-1, *[1] * ({of}.ndim - 1)), {of}, 0)"
    return padding(within(statement, node, text, _TORCH))


def masked(node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt) -> Rewrite | None:
    """``x[mask].sum()`` or ``torch.sum(x[mask])`` as a sum with zeros."""
    found = reduction_of(node, parents, "torch")
    if found is None or found[1] not in ("sum", "any"):
        return None
    if isinstance(node.slice, ast.Tuple | ast.Slice | ast.List | ast.NamedExpr):
        return None
    array, mask = grouped(node.value), grouped(node.slice)
    if not same_shape(node.slice, node.value):
        # The mask may be of the rows alone: it is aligned on the left, and broadcasting is not.
        mask = f"{mask}.reshape({mask}.shape + (1,) * ({array}.ndim - {mask}.ndim))"
    return within(statement, node, f"torch.where({mask}, {array}, 0)", _TORCH)
