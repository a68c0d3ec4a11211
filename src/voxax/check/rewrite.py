"""Rewrites that are mechanical: the syntax of a faulty line, turned into one that compiles once."""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Sequence

from voxax.check.findings import Rewrite

_JAX, _JNP = "import jax", "import jax.numpy as jnp"
_CONVERSIONS = ("int", "float", "bool")


def lines_of(
    statement: ast.stmt, text: str, *imports: str, last: ast.stmt | None = None
) -> Rewrite | None:
    """``text``, if it is Python, in place of a statement (or several), indented as it was."""
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    if "jnp." in text and _JNP not in imports:
        imports = (*imports, _JNP)
    pad = " " * statement.col_offset
    end = (last or statement).end_lineno or statement.lineno
    body = "\n".join(pad + line if line else line for line in text.splitlines())
    return Rewrite(statement.lineno, end, body, imports)


def source(node: ast.AST) -> str:
    """The node as text."""
    return ast.unparse(node)


def grouped(node: ast.expr) -> str:
    """The node as text that may stand beside any operator."""
    atom = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return source(node) if atom else f"({source(node)})"


def within(statement: ast.stmt, node: ast.expr, text: str, *imports: str) -> Rewrite | None:
    """The statement with one expression replaced; None for one that has statements inside."""
    if hasattr(statement, "body"):
        return None
    marked = copy.deepcopy(statement)
    places = (
        (parent, field, value)
        for parent in ast.walk(marked)
        for field, value in ast.iter_fields(parent)
    )

    def same(other: object) -> bool:
        return isinstance(other, ast.expr) and ast.dump(other, include_attributes=True) == ast.dump(
            node, include_attributes=True
        )

    try:
        new = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    for parent, field, value in places:
        if same(value):
            setattr(parent, field, new)
            return lines_of(statement, source(marked), *imports)
        if isinstance(value, list) and (found := [i for i, v in enumerate(value) if same(v)]):
            value[found[0]] = new
            return lines_of(statement, source(marked), *imports)
    return None


def stored(statements: Sequence[ast.stmt]) -> list[str]:
    """Names that statements assign, in order."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)


def loaded(node: ast.AST) -> set[str]:
    """Names that are read in a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def defined_before(function: ast.AST, line: int) -> set[str]:
    """Names that a function has before a line: its parameters and what it assigned."""
    names: set[str] = set()
    if isinstance(function, ast.FunctionDef | ast.Lambda | ast.AsyncFunctionDef):
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names |= {a.arg for a in every}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line:
            names.add(node.id)
    return names


def _names(target: ast.expr) -> bool:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(part, ast.Name) for part in parts)


def is_simple(statements: Sequence[ast.stmt]) -> bool:
    """Whether all that statements do is to assign names."""
    return all(
        (isinstance(s, ast.Assign) and all(_names(t) for t in s.targets))
        or (isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name))
        or isinstance(s, ast.Pass)
        for s in statements
    )


def indented(statements: Sequence[ast.stmt], indent: str = "    ") -> str:
    """Statements as the text of a block."""
    text = "\n".join(source(s) for s in statements if not isinstance(s, ast.Pass))
    return "".join(f"{indent}{line}\n" for line in text.splitlines())


def branch(node: ast.If, following: Sequence[ast.stmt], function: ast.AST) -> Rewrite | None:
    """``if`` on a traced value as ``jax.lax.cond``.

    Args:
      node: the statement.
      following: the statements after it in the same block.
      function: the function around it.
    """
    test = condition(node.test)
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
        text = f"return {_cond(test, source(one.value), source(two.value))}"
        return lines_of(node, text, _JAX, last=last)
    if not (is_simple(node.body) and is_simple(node.orelse)):
        return None
    names = stored([*node.body, *node.orelse])
    before = defined_before(function, node.lineno)
    if not set(names) <= before | (set(stored(node.body)) & set(stored(node.orelse))):
        return None
    if len(names) == 1 and len(node.body) == 1 and len(node.orelse) <= 1:
        sides = [value_of(s[0]) if s else names[0] for s in (node.body, node.orelse)]
        if all(sides):
            return lines_of(node, f"{names[0]} = {_cond(test, *sides)}", _JAX)  # pyright: ignore[reportArgumentType]
    if not set(names) <= before:
        return None
    given = ", ".join(names)
    text = (
        f"def taken({given}):\n{indented(node.body)}    return {given}\n"
        f"def skipped({given}):\n{indented(node.orelse)}    return {given}\n"
        f"{given} = jax.lax.cond({test}, taken, skipped, {given})"
    )
    return lines_of(node, text, _JAX)


def value_of(statement: ast.stmt) -> str | None:
    """What an assignment assigns, as text."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return source(statement.value)
    if isinstance(statement, ast.AugAssign):
        joined = ast.BinOp(
            ast.Name(statement.target.id, ast.Load()),  # pyright: ignore[reportAttributeAccessIssue]
            statement.op,
            statement.value,
        )
        return source(joined)
    return None


def _cond(test: str, one: str, two: str) -> str:
    return f"jax.lax.cond({test}, lambda: {one}, lambda: {two})"


# What guards another operand, or asks Python: an array cannot answer in its place.
_GUARDS = ("isinstance", "issubclass", "hasattr", "callable", "len", "any", "all")


def condition(node: ast.expr, library: str = "jnp") -> str | None:
    """A Python condition as one that arrays understand.

    ``and`` and ``or`` become functions that evaluate both operands, so there is none (None) where
    one operand may be a guard of the other: ``mask is not None and mask.any()``.

    Args:
      node: the condition.
      library: what the functions are called by.
    """
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr):
            return None
        if isinstance(part, ast.Compare) and any(
            isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in part.ops
        ):
            return None
        called = part.func if isinstance(part, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in _GUARDS:
            return None
    return source(_logic(node, library))


def _logic(node: ast.expr, library: str) -> ast.expr:
    """Only what is a condition itself: ``a or b`` as an argument chooses a value."""
    if isinstance(node, ast.BoolOp):
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return _joined(library, name, [_logic(value, library) for value in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _call(library, "logical_not", _logic(node.operand, library))
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return _joined(library, "logical_and", [ast.Compare(a, [op], [b]) for a, op, b in pairs])
    called = node.func if isinstance(node, ast.Call) and len(node.args) == 1 else None
    if isinstance(called, ast.Name) and called.id == "bool":
        return _logic(node.args[0], library)  # pyright: ignore[reportAttributeAccessIssue]
    return node


def _joined(library: str, name: str, parts: Sequence[ast.expr]) -> ast.expr:
    joined = parts[0]
    for part in parts[1:]:
        joined = _call(library, name, joined, part)
    return joined


def _call(library: str, name: str, *arguments: ast.expr) -> ast.expr:
    function = ast.Attribute(ast.Name(library, ast.Load()), name, ast.Load())
    return ast.Call(function, list(arguments), [])


def choice(node: ast.IfExp, statement: ast.stmt) -> Rewrite | None:
    """``a if test else b`` as ``jax.lax.cond``."""
    test = condition(node.test)
    if test is None:
        return None
    text = _cond(test, source(node.body), source(node.orelse))
    return within(statement, node, text, _JAX)


def integer(node: ast.expr) -> str:
    """An integer expression without Python conversions: it may be traced."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return source(node)
    if not isinstance(node.func, ast.Name) or node.func.id not in _CONVERSIONS:
        return source(node)
    return f"jnp.asarray({source(node.args[0])}).astype(jnp.int32)"


def counted(node: ast.For, function: ast.AST) -> Rewrite | None:
    """``for i in range(n)`` as ``jax.lax.fori_loop``."""
    call = node.iter
    if not (isinstance(call, ast.Call) and 1 <= len(call.args) <= 2 and not node.orelse):
        return None
    if not (isinstance(call.func, ast.Name) and call.func.id == "range"):
        return None
    if not (is_simple(node.body) and isinstance(node.target, ast.Name)):
        return None
    before = defined_before(function, node.lineno)
    carried = [name for name in stored(node.body) if name in before]
    if not carried:
        return None
    start, stop = (
        ("0", call.args[0]) if len(call.args) == 1 else (integer(call.args[0]), call.args[1])
    )
    state = ", ".join(carried)
    packed = state if len(carried) == 1 else f"({state})"
    index = node.target.id
    unpack = "" if len(carried) == 1 else f"    {state} = state\n"
    given = state if len(carried) == 1 else "state"
    text = (
        f"def body({index}, {given}):\n{unpack}{indented(node.body)}    return {packed}\n"
        f"{state} = jax.lax.fori_loop({start}, {integer(stop)}, body, {packed})"
    )
    return lines_of(node, text, _JAX, _JNP)


def repeated(node: ast.While, function: ast.AST) -> Rewrite | None:
    """``while test`` as ``jax.lax.while_loop``."""
    test = condition(node.test)
    if test is None or node.orelse or not is_simple(node.body):
        return None
    before = defined_before(function, node.lineno)
    carried = [name for name in stored(node.body) if name in before]
    if not carried:
        return None
    state = ", ".join(carried)
    packed = state if len(carried) == 1 else f"({state})"
    unpack = "" if len(carried) == 1 else f"    {state} = state\n"
    given = state if len(carried) == 1 else "state"
    text = (
        f"def unfinished({given}):\n{unpack}    return {test}\n"
        f"def body({given}):\n{unpack}{indented(node.body)}    return {packed}\n"
        f"{state} = jax.lax.while_loop(unfinished, body, {packed})"
    )
    return lines_of(node, text, _JAX, _JNP)


def bounded_slice(
    node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt
) -> Rewrite | None:
    """``x[a:b]`` at full length, or of a constant one, with zeros for what is not in the slice.

    Only where it is returned or summed: in a mean or a maximum the zeros would count.

    Args:
      node: the slice.
      parents: the nodes around it, innermost first.
      statement: the statement that it is in.
    """
    cut = node.slice
    if not isinstance(cut, ast.Slice) or cut.step is not None:
        return None
    if not may_fill_with_zeros(node, parents):
        return None
    of = grouped(node.value)
    low, high = cut.lower, cut.upper
    if (
        isinstance(high, ast.BinOp)
        and isinstance(high.op, ast.Add)
        and low is not None
        and ast.dump(high.left) == ast.dump(low)
        and isinstance(high.right, ast.Constant)
        and isinstance(high.right.value, int)
        and high.right.value > 0
    ):
        # Not dynamic_slice: near the end it moves the window, where Python shortens it. A window
        # from before row 0 to behind it is empty in Python.
        start, width = integer(low), high.right.value
        rows = f"({start}) + jnp.arange({width})"
        whole = f"(({start}) >= 0) | (({start}) < {-width})"
        rows = f"jnp.where({whole}, {rows}, {of}.shape[0])"
        text = f"jnp.take({of}, {rows}, axis=0, mode='fill', fill_value=0)"
        return padding(within(statement, node, text))
    rows = f"jnp.arange({of}.shape[0])"
    tests = [f"({rows} >= {_from_start(low, of)})"] if low is not None else []
    tests += [f"({rows} < {_from_start(high, of)})"] if high is not None else []
    mask = " & ".join(tests)
    zeros = f"jnp.zeros_like({of})"
    text = f"jnp.where(jnp.expand_dims({mask}, tuple(range(1, {of}.ndim))), {of}, {zeros})"
    return padding(within(statement, node, text))


def padding(made: Rewrite | None) -> Rewrite | None:
    """The same, marked as one that returns zeros beside the slice."""
    return made if made is None else dataclasses.replace(made, pads=True)


def _from_start(bound: ast.expr, of: str) -> str:
    """A bound that counts from the start: in Python, negative ones count from the end."""
    at = integer(bound)
    if isinstance(bound, ast.Constant) and isinstance(bound.value, int):
        return at
    return f"({at}) + (({at}) < 0) * {of}.shape[0]"


def may_fill_with_zeros(
    node: ast.Subscript, parents: Sequence[ast.AST], library: str = "jnp"
) -> bool:
    """Whether a slice is returned or summed, so that zeros in place of nothing are right."""
    if parents and isinstance(parents[0], ast.Return):
        return True
    found = reduction_of(node, parents, library)
    return found is not None and found[1] == "sum"


_IN_PLACE = {ast.Add: "add", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}


def assignment(statement: ast.stmt) -> Rewrite | None:
    """``x[i] = v`` as ``x = x.at[i].set(v)``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, method, value = statement.targets[0], "set", source(statement.value)
    elif isinstance(statement, ast.AugAssign):
        target, method = statement.target, _IN_PLACE.get(type(statement.op))
        value = source(statement.value)
        if isinstance(statement.op, ast.Sub):
            method, value = "add", f"-({value})"
    else:
        return None
    if method is None or not isinstance(target, ast.Subscript):
        return None
    array = source(target.value)
    # Inside of a subscript: a tuple of slices alone would get parentheses, which is no Python.
    index = source(ast.Subscript(ast.Name("_"), target.slice, ast.Load()))[2:-1]
    return lines_of(statement, f"{array} = {array}.at[{index}].{method}({value})")


_NAMES = {"jnp": ("jnp", "jax.numpy"), "torch": ("torch",)}
_MASKED = ("sum", "mean", "prod", "any", "all", "std", "var")


def masked(node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt) -> Rewrite | None:
    """``x[mask].sum()`` or ``jnp.sum(x[mask])`` as a reduction with ``where=mask``."""
    found = reduction_of(node, parents)
    if found is None or isinstance(node.slice, ast.Tuple | ast.Slice | ast.List | ast.NamedExpr):
        return None
    outer, name = found
    array, mask = grouped(node.value), source(node.slice)
    if not same_shape(node.slice, node.value):
        # The mask may be of the rows alone: it is aligned on the left, and broadcasting is not.
        axes = f"tuple(range({grouped(node.slice)}.ndim, {array}.ndim))"
        mask = f"jnp.expand_dims({mask}, {axes})"
    function = outer.func
    if outer.args:
        return within(statement, outer, f"{source(function)}({array}, where={mask})")
    return within(statement, outer, f"{array}.{name}(where={mask})")


def same_shape(mask: ast.expr, array: ast.expr) -> bool:
    """Whether a mask is ``array > 0`` and the like: it has the array's own shape."""
    return (
        isinstance(mask, ast.Compare)
        and ast.dump(mask.left) == ast.dump(array)
        and all(isinstance(other, ast.Constant) for other in mask.comparators)
    )


def reduction_of(
    node: ast.Subscript, parents: Sequence[ast.AST], library: str = "jnp"
) -> tuple[ast.Call, str] | None:
    """The call that reduces all of a subscript, and its name."""
    for outer in parents[:2]:
        if not isinstance(outer, ast.Call) or outer.keywords:
            continue
        name = outer.func
        if not isinstance(name, ast.Attribute) or name.attr not in _MASKED:
            continue
        if name.value is node and not outer.args:
            return outer, name.attr
        if outer.args == [node] and source(name.value) in _NAMES[library]:
            return outer, name.attr
    return None
