"""Rewrites that are mechanical: the syntax of a faulty line, turned into one that compiles once."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from voxax.check.finding import Rewrite

_JAX, _JNP = "import jax", "import jax.numpy as jnp"
_CONVERSIONS = ("int", "float", "bool")


def lines_of(
    statement: ast.stmt, text: str, *imports: str, last: ast.stmt | None = None
) -> Rewrite:
    """``text`` in place of a statement (or several), indented as it was."""
    pad = " " * statement.col_offset
    end = (last or statement).end_lineno or statement.lineno
    body = "\n".join(pad + line if line else line for line in text.splitlines())
    return Rewrite(statement.lineno, end, body, imports)


def source(node: ast.AST) -> str:
    """The node as text."""
    return ast.unparse(node)


def within(statement: ast.stmt, node: ast.expr, text: str, *imports: str) -> Rewrite | None:
    """The statement with one expression replaced."""
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

    new = ast.parse(text, mode="eval").body
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


def _simple(statements: Sequence[ast.stmt]) -> bool:
    return all(
        (isinstance(s, ast.Assign) and all(isinstance(t, ast.Name | ast.Tuple) for t in s.targets))
        or (isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name))
        or isinstance(s, ast.Pass)
        for s in statements
    )


def _block(statements: Sequence[ast.stmt], indent: str = "    ") -> str:
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
    if not (_simple(node.body) and _simple(node.orelse)):
        return None
    names = stored([*node.body, *node.orelse])
    before = defined_before(function, node.lineno)
    if not set(names) <= before | (set(stored(node.body)) & set(stored(node.orelse))):
        return None
    if len(names) == 1 and len(node.body) == 1 and len(node.orelse) <= 1:
        sides = [_value(s[0]) if s else names[0] for s in (node.body, node.orelse)]
        if all(sides):
            return lines_of(node, f"{names[0]} = {_cond(test, *sides)}", _JAX)  # pyright: ignore[reportArgumentType]
    if not set(names) <= before:
        return None
    given = ", ".join(names)
    text = (
        f"def taken({given}):\n{_block(node.body)}    return {given}\n"
        f"def skipped({given}):\n{_block(node.orelse)}    return {given}\n"
        f"{given} = jax.lax.cond({test}, taken, skipped, {given})"
    )
    return lines_of(node, text, _JAX)


def _value(statement: ast.stmt) -> str | None:
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


def condition(node: ast.expr) -> str:
    """A Python condition as one that arrays understand."""
    return source(_Logic().visit(copy.deepcopy(node)))


class _Logic(ast.NodeTransformer):
    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        joined = node.values[0]
        for value in node.values[1:]:
            joined = _call(name, joined, value)
        return joined

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call("logical_not", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        parts = [ast.Compare(a, [op], [b]) for a, op, b in pairs]
        joined: ast.expr = parts[0]
        for part in parts[1:]:
            joined = _call("logical_and", joined, part)
        return joined

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        inner = isinstance(node.func, ast.Name) and node.func.id == "bool" and len(node.args) == 1
        return node.args[0] if inner else node


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    function = ast.Attribute(ast.Name("jnp", ast.Load()), name, ast.Load())
    return ast.Call(function, list(arguments), [])


def choice(node: ast.IfExp, statement: ast.stmt) -> Rewrite | None:
    """``a if test else b`` as ``jax.lax.cond``."""
    text = _cond(condition(node.test), source(node.body), source(node.orelse))
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
    if not (_simple(node.body) and isinstance(node.target, ast.Name)):
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
        f"def body({index}, {given}):\n{unpack}{_block(node.body)}    return {packed}\n"
        f"{state} = jax.lax.fori_loop({start}, {integer(stop)}, body, {packed})"
    )
    return lines_of(node, text, _JAX, _JNP)


def repeated(node: ast.While, function: ast.AST) -> Rewrite | None:
    """``while test`` as ``jax.lax.while_loop``."""
    if node.orelse or not _simple(node.body):
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
        f"def unfinished({given}):\n{unpack}    return {condition(node.test)}\n"
        f"def body({given}):\n{unpack}{_block(node.body)}    return {packed}\n"
        f"{state} = jax.lax.while_loop(unfinished, body, {packed})"
    )
    return lines_of(node, text, _JAX, _JNP)


def bounded_slice(node: ast.Subscript, statement: ast.stmt) -> Rewrite | None:
    """``x[a:b]`` as a window of constant length, or as ``x`` with zeros outside of the slice."""
    cut = node.slice
    if not isinstance(cut, ast.Slice) or cut.step is not None:
        return None
    of = source(node.value)
    low, high = cut.lower, cut.upper
    if (
        isinstance(high, ast.BinOp)
        and isinstance(high.op, ast.Add)
        and low is not None
        and ast.dump(high.left) == ast.dump(low)
        and isinstance(high.right, ast.Constant)
    ):
        text = f"jax.lax.dynamic_slice_in_dim({of}, {integer(low)}, {source(high.right)})"
        return within(statement, node, text, _JAX, _JNP)
    rows = f"jnp.arange({of}.shape[0])"
    tests = [f"({rows} >= {integer(low)})"] if low is not None else []
    tests += [f"({rows} < {integer(high)})"] if high is not None else []
    mask = " & ".join(tests)
    text = f"jnp.where(jnp.expand_dims({mask}, tuple(range(1, {of}.ndim))), {of}, 0)"
    return within(statement, node, text, _JNP)


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
    array, index = source(target.value), source(target.slice)
    return lines_of(statement, f"{array} = {array}.at[{index}].{method}({value})")


_MASKED = ("sum", "mean", "prod", "any", "all", "std", "var")


def masked(node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt) -> Rewrite | None:
    """``x[mask].sum()`` or ``jnp.sum(x[mask])`` as a reduction with ``where=mask``."""
    array, mask = source(node.value), source(node.slice)
    for outer in parents[:2]:
        if not isinstance(outer, ast.Call) or outer.keywords:
            continue
        name = outer.func
        if not isinstance(name, ast.Attribute) or name.attr not in _MASKED:
            continue
        if name.value is node and not outer.args:
            text = f"{array}.{name.attr}(where={mask})"
        elif outer.args == [node]:
            text = f"{source(name)}({array}, where={mask})"
        else:
            continue
        return within(statement, outer, text)
    return None


def sized(node: ast.Call, statement: ast.stmt) -> Rewrite | None:
    """A call of ``jnp.nonzero`` and its like with ``size=``."""
    if not node.args or any(k.arg == "size" for k in node.keywords):
        return None
    new = copy.deepcopy(node)
    new.keywords.append(ast.keyword("size", ast.Attribute(node.args[0], "size", ast.Load())))
    return within(statement, node, source(new))
