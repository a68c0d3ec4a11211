"""Write suggestions: replacements for faulty statements that keep the names of the source.

A suggestion is text to read: nothing edits the source or runs it. There is no suggestion if the new
statement might compute something else, as for a condition whose operands guard each other, or for
zeros outside of a slice in a mean.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Sequence

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_MODULES = {"jnp": ("jnp", "jax.numpy"), "torch": ("torch",)}
# Reductions that a mask can take part in.
_MASKED = {
    "jnp": ("sum", "mean", "prod", "any", "all", "std", "var"),
    "torch": ("sum", "any"),
}
# Calls in a condition that guard another operand, or that only Python can answer.
_GUARDS = ("isinstance", "issubclass", "hasattr", "callable", "len", "any", "all")
_IN_PLACE = {ast.Add: "add", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power"}


def suggested(code: str, chain: Sequence[ast.AST], subject: ast.AST | None, library: str) -> str:
    """Return a statement that can replace the faulty statement, or an empty string.

    `code` is the finding's code, such as VX101. `chain` has the syntax nodes around the place,
    innermost first. `subject` is the node that the finding is about. `library` is the array library
    of the suggestion, ``jnp`` or ``torch``.
    """
    statement = first_of(chain, ast.stmt)
    function = first_of(chain, FUNCTIONS) or (chain[-1] if chain else ast.Module([], []))
    if not isinstance(statement, ast.stmt):
        return ""
    if isinstance(subject, ast.If):
        return _branch(subject, _following(chain, subject), function, library)
    if isinstance(subject, ast.IfExp):
        sides = ast.unparse(subject.body), ast.unparse(subject.orelse)
        test = _condition(subject.test, library)
        return _within(statement, subject, _choose(library, test, *sides)) if test else ""
    if isinstance(subject, ast.For):
        return _counted(subject, function, library)
    if isinstance(subject, ast.While):
        return _repeated(subject, function) if library == "jnp" else ""
    if isinstance(subject, ast.Subscript) and code in ("VX104", "VX105"):
        make = _bounded_slice if code == "VX104" else _masked
        return make(subject, _around(chain, subject), statement, library)
    return _assignment(statement) if code == "VX113" else ""


def suggested_later(
    number: ast.Assign, chain: Sequence[ast.AST], cut: ast.AST | None, library: str
) -> str:
    """Return code that replaces an assignment of a number and a later slice with this bound.

    `number` is the assignment, such as ``n = mask.sum()``. `cut` is the subscript with the slice,
    such as ``x[:n]``. `chain` has the syntax nodes that contain the use of the assigned name,
    innermost first. `library` is ``jnp`` or ``torch``. The code is empty if no replacement is
    known.
    """
    later = suggested("VX104", chain, cut, library)
    if not later or len(number.targets) != 1 or not isinstance(number.targets[0], ast.Name):
        return ""
    return f"{number.targets[0].id} = {_integer(number.value, library)}\n{later}"


def replaceable(file: str, statement: ast.AST | None) -> bool:
    """Return True if the lines of `statement` in the source belong to this statement alone.

    An ``elif`` is a separate statement in the syntax tree, but not in the source, so it gives
    False.
    """
    if not isinstance(statement, ast.stmt):
        return False
    lines = linecache.getlines(file)[statement.lineno - 1 : statement.end_lineno]
    if not lines or any(";" in line for line in lines):
        return False
    before = lines[0].encode()[: statement.col_offset].decode()
    return not before.strip() and lines[0].split(maxsplit=1)[0] != "elif"


def first_of(chain: Sequence[ast.AST], kinds: type | tuple[type, ...]) -> ast.AST | None:
    """Return the first of the syntax nodes `chain` that has one of the given types, or None."""
    return next((node for node in chain if isinstance(node, kinds)), None)


def _around(chain: Sequence[ast.AST], node: ast.AST) -> Sequence[ast.AST]:
    return chain[list(chain).index(node) + 1 :]


def _following(chain: Sequence[ast.AST], node: ast.stmt) -> Sequence[ast.stmt]:
    """Return the statements that follow the statement `node` in the same block.

    `chain` has the syntax nodes that contain `node`, innermost first.
    """
    parent = next(iter(_around(chain, node)), None)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and node in block:
            return block[block.index(node) + 1 :]
    return ()


def _grouped(node: ast.expr) -> str:
    """Return the source text of a node, in parentheses if an operator beside it could split it."""
    atom = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return ast.unparse(node) if atom else f"({ast.unparse(node)})"


class _Replacement(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _within(statement: ast.stmt, node: ast.expr, text: str) -> str:
    """Return the source of a statement in which `text` replaces the expression `node`.

    The result is empty for a statement with a body, such as an ``if`` or a loop.
    """
    if hasattr(statement, "body"):
        return ""
    copies: dict[int, ast.AST] = {}
    copied = copy.deepcopy(statement, copies)
    new = ast.parse(text, mode="eval").body
    return ast.unparse(_Replacement(copies[id(node)], new).visit(copied))


def stored(statements: Sequence[ast.AST]) -> list[str]:
    """Return the names that the statements assign to, in order and without repetition."""
    walked = (node for statement in statements for node in ast.walk(statement))
    names = (n.id for n in walked if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return list(dict.fromkeys(names))


def _defined_before(function: ast.AST, line: int) -> set[str]:
    """Return the names that exist in a function before a line: parameters and assigned names."""
    names: set[str] = set()
    if isinstance(function, FUNCTIONS):
        arguments = function.args
        names |= {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line:
            names.add(node.id)
    return names


def _only_assigns(statements: Sequence[ast.stmt]) -> bool:
    """Return True for statements that only assign names."""

    def names(target: ast.expr) -> bool:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        return all(isinstance(part, ast.Name) for part in parts)

    return all(
        (isinstance(s, ast.Assign) and all(map(names, s.targets)))
        or (isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name))
        or isinstance(s, ast.Pass)
        for s in statements
    )


def _block(statements: Sequence[ast.stmt]) -> str:
    text = "\n".join(ast.unparse(s) for s in statements if not isinstance(s, ast.Pass))
    return "".join(f"    {line}\n" for line in text.splitlines())


def _assigned_value(statement: ast.stmt) -> str:
    """Return the expression that a statement assigns to its one target, as source text.

    For ``x += y`` it is ``x + y``. It is empty for statements with several targets or none.
    """
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        return ast.unparse(statement.value)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        before = ast.Name(statement.target.id, ast.Load())
        return ast.unparse(ast.BinOp(before, statement.op, statement.value))
    return ""


def _choose(library: str, test: str, one: str, two: str) -> str:
    if library == "torch":
        return f"torch.where({test}, {one}, {two})"
    return f"jax.lax.cond({test}, lambda: {one}, lambda: {two})"


def _branch(node: ast.If, following: Sequence[ast.stmt], function: ast.AST, library: str) -> str:
    """Return code with ``jax.lax.cond`` or ``torch.where`` for an ``if``, or an empty string.

    `library` is ``jnp`` or ``torch``, and `function` is the function that contains the ``if``.
    `following` has the statements after the ``if``. If the ``if`` returns and has no ``else``, the
    first of these statements counts as the ``else``.
    """
    test = _condition(node.test, library)
    if not test:
        return ""
    other = node.orelse
    one = node.body[0] if len(node.body) == 1 else None
    if not other and isinstance(one, ast.Return):
        other = list(following[:1])
    two = other[0] if len(other) == 1 else None
    if isinstance(one, ast.Return) and isinstance(two, ast.Return) and one.value and two.value:
        sides = ast.unparse(one.value), ast.unparse(two.value)
        return f"return {_choose(library, test, *sides)}"
    if not (_only_assigns(node.body) and _only_assigns(node.orelse)):
        return ""
    names = stored([*node.body, *node.orelse])
    before = _defined_before(function, node.lineno)
    if not set(names) <= before | (set(stored(node.body)) & set(stored(node.orelse))):
        return ""
    if len(names) == 1 and len(node.body) == 1 and len(node.orelse) <= 1:
        sides = [_assigned_value(s[0]) if s else names[0] for s in (node.body, node.orelse)]
        if all(sides):
            return f"{names[0]} = {_choose(library, test, sides[0], sides[1])}"
    if library == "torch" or not set(names) <= before:
        return ""
    given = ", ".join(names)
    return (
        f"def taken({given}):\n{_block(node.body)}    return {given}\n"
        f"def skipped({given}):\n{_block(node.orelse)}    return {given}\n"
        f"{given} = jax.lax.cond({test}, taken, skipped, {given})"
    )


def _condition(node: ast.expr, library: str) -> str:
    """Return a Python condition as the text of an expression for arrays, or an empty string.

    ``and`` and ``or`` become functions of `library`, ``jnp`` or ``torch``, that evaluate both
    operands. So the text is empty if one operand may guard the other operand, as in
    ``mask is not None and mask.any()``.
    """
    for part in ast.walk(node):
        if isinstance(part, ast.NamedExpr | ast.Is | ast.IsNot | ast.In | ast.NotIn):
            return ""
        called = part.func if isinstance(part, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in _GUARDS:
            return ""
    return ast.unparse(_logic(node, library))


def _logic(node: ast.expr, library: str) -> ast.expr:
    """Return a condition with array functions of `library` in place of ``and``, ``or`` and ``not``.

    A chain such as ``a < b < c`` is split, and ``bool(x)`` becomes ``x``. Other calls are not
    changed.
    """

    def call(name: str, *arguments: ast.expr) -> ast.expr:
        return ast.Call(
            ast.Attribute(ast.Name(library, ast.Load()), name, ast.Load()), list(arguments), []
        )

    def joined(name: str, parts: Sequence[ast.expr]) -> ast.expr:
        result = parts[0]
        for part in parts[1:]:
            result = call(name, result, part)
        return result

    if isinstance(node, ast.BoolOp):
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return joined(name, [_logic(value, library) for value in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return call("logical_not", _logic(node.operand, library))
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return joined("logical_and", [ast.Compare(a, [op], [b]) for a, op, b in pairs])
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return node
    plain = node.func.id == "bool" and len(node.args) == 1
    return _logic(node.args[0], library) if plain else node


class _Conversions(ast.NodeTransformer):
    """Replaces ``int(x)`` and ``x.item()`` by conversions that return an array."""

    def __init__(self, library: str) -> None:
        self.library = library

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = node.func
        if isinstance(called, ast.Name) and called.id == "int" and len(node.args) == 1:
            inner = node.args[0]
        elif isinstance(called, ast.Attribute) and called.attr == "item" and not node.args:
            inner = called.value
        else:
            return node
        return ast.parse(_as_integer(ast.unparse(inner), self.library), mode="eval").body


def _as_integer(text: str, library: str) -> str:
    if library == "torch":
        return f"torch.as_tensor({text}).to(torch.int64)"
    return f"jnp.asarray({text}).astype(jnp.int32)"


def _integer(node: ast.expr, library: str) -> str:
    """Return an expression as text, with integer arrays in place of ``int(x)`` and ``x.item()``."""
    converted = _Conversions(library).visit(copy.deepcopy(node))
    text = ast.unparse(converted)
    plain = ast.unparse(node) == text
    return _as_integer(text, library) if library == "torch" and plain else text


def _counted(node: ast.For, function: ast.AST, library: str) -> str:
    """Return code that replaces a ``for`` over a ``range``, or "" if none is known.

    For the `library` ``jnp`` the code has ``jax.lax.fori_loop``, for ``torch`` it comes from
    :func:`_bounded_loop`. `function` is the function that contains the loop.
    """
    call = node.iter
    if not isinstance(call, ast.Call) or node.orelse or not isinstance(node.target, ast.Name):
        return ""
    if not (isinstance(call.func, ast.Name) and call.func.id == "range"):
        return ""
    if not 1 <= len(call.args) <= (2 if library == "jnp" else 1) or not _only_assigns(node.body):
        return ""
    before = _defined_before(function, node.lineno)
    carried = [name for name in stored(node.body) if name in before]
    if not carried:
        return ""
    if library == "torch":
        return _bounded_loop(node, call.args[0], carried)
    start = _integer(call.args[0], library) if len(call.args) == 2 else "0"
    state, packed, given, unpack = _carry(carried)
    return (
        f"def body({node.target.id}, {given}):\n{unpack}{_block(node.body)}    return {packed}\n"
        f"{state} = jax.lax.fori_loop({start}, {_integer(call.args[-1], library)}, body, {packed})"
    )


def _bounded_loop(node: ast.For, count: ast.expr, carried: Sequence[str]) -> str:
    """Return code for a PyTorch loop over ``range(bound)`` to replace the loop `node`.

    Iterations after the first `count` have no effect. `carried` has the names of the variables that
    each iteration reads and assigns.
    """
    index = node.target.id if isinstance(node.target, ast.Name) else "_"
    index = "turn" if index == "_" else index
    keep = "".join(f"    {name}_before = {name}\n" for name in carried)
    choose = "".join(
        f"    {name} = torch.where({index} < turns, {name}, {name}_before)\n" for name in carried
    )
    return (
        f"turns = {_integer(count, 'torch')}\n"
        f"for {index} in range(bound):  # bound: the most turns that there may be\n"
        f"{keep}{_block(node.body)}{choose}".rstrip()
    )


def _repeated(node: ast.While, function: ast.AST) -> str:
    """Return code with ``jax.lax.while_loop`` to replace a ``while`` loop, or an empty string."""
    test = _condition(node.test, "jnp")
    before = _defined_before(function, node.lineno)
    carried = [name for name in stored(node.body) if name in before]
    if not test or node.orelse or not carried or not _only_assigns(node.body):
        return ""
    state, packed, given, unpack = _carry(carried)
    return (
        f"def unfinished({given}):\n{unpack}    return {test}\n"
        f"def body({given}):\n{unpack}{_block(node.body)}    return {packed}\n"
        f"{state} = jax.lax.while_loop(unfinished, body, {packed})"
    )


def _carry(names: Sequence[str]) -> tuple[str, str, str, str]:
    """Return four pieces of code for a loop such as ``fori_loop`` that carries variables.

    They are the targets that receive the loop's result, the expression of the initial state, the
    parameter of the loop's body function, and the line that unpacks this parameter. For a single
    variable in `names`, the line is ``""``.
    """
    state = ", ".join(names)
    if len(names) == 1:
        return state, state, state, ""
    return state, f"({state})", "state", f"    {state} = state\n"


def _bounded_slice(
    node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt, library: str
) -> str:
    """Return code that replaces ``x[a:b]`` by ``x`` with zeros outside of the slice, or "".

    The new array has the full length of ``x``. The slice must be returned or summed, because zeros
    would change a mean or a maximum. `node` is the expression ``x[a:b]`` in `statement`, and
    `parents` are the syntax nodes that contain it, innermost first. `library` is ``jnp`` or
    ``torch``.
    """
    cut = node.slice
    if not isinstance(cut, ast.Slice) or cut.step is not None:
        return ""
    if cut.lower is None and cut.upper is None:
        return ""
    returned = bool(parents) and isinstance(parents[0], ast.Return)
    if not returned and _reduction_of(node, parents, library)[1] != "sum":
        return ""
    of = _grouped(node.value)
    walked = ast.walk(first_of(parents, FUNCTIONS) or statement)
    taken = {n.id for n in walked if isinstance(n, ast.Name)}
    names = ("rows", "inside", "start", "stop")
    rows, inside, start, stop = (f"slice_{n}" if set(names) & taken else n for n in names)
    device = f", device={of}.device" if library == "torch" else ""
    lines, tests = [f"{rows} = {library}.arange({of}.shape[0]{device})"], []
    for name, bound, compare in ((start, cut.lower, ">="), (stop, cut.upper, "<")):
        if bound is None:
            continue
        at = ast.unparse(bound)
        if not isinstance(bound, ast.Constant):
            lines.append(f"{name} = {_integer(bound, library)}")
            # In Python, negative bounds count from the end.
            at = f"{library}.where({name} < 0, {name} + {of}.shape[0], {name})"
        tests.append(f"{rows} {compare} {at}")
    both = len(tests) > 1
    lines.append(f"{inside} = {' & '.join(f'({test})' if both else test for test in tests)}")
    if library == "torch":
        text = f"torch.where({inside}.reshape(-1, *[1] * ({of}.ndim - 1)), {of}, 0)"
    else:
        axes = f"tuple(range(1, {of}.ndim))"
        text = f"jnp.where(jnp.expand_dims({inside}, {axes}), {of}, jnp.zeros_like({of}))"
    last = _within(statement, node, text)
    return "\n".join([*lines, last]) if last else ""


def _masked(
    node: ast.Subscript, parents: Sequence[ast.AST], statement: ast.stmt, library: str
) -> str:
    """Return code such as ``x.sum(where=mask)`` that replaces ``x[mask].sum()``, or ``""``.

    `node` is the expression ``x[mask]`` in `statement`, and `parents` are the syntax nodes that
    contain it, innermost first. `library` is ``jnp`` or ``torch``.
    """
    outer, name = _reduction_of(node, parents, library)
    if outer is None or isinstance(node.slice, ast.Tuple | ast.Slice | ast.List | ast.NamedExpr):
        return ""
    array, mask = _grouped(node.value), _grouped(node.slice)
    if not _has_shape_of(node.slice, node.value):
        # The mask may cover only the rows: it is aligned on the left, but broadcasting aligns on
        # the right.
        if library == "torch":
            mask = f"{mask}.reshape({mask}.shape + (1,) * ({array}.ndim - {mask}.ndim))"
        else:
            mask = f"jnp.expand_dims({mask}, tuple(range({mask}.ndim, {array}.ndim)))"
    if library == "torch":
        return _within(statement, node, f"torch.where({mask}, {array}, 0)")
    if outer.args:
        return _within(statement, outer, f"{ast.unparse(outer.func)}({array}, where={mask})")
    return _within(statement, outer, f"{array}.{name}(where={mask})")


def _has_shape_of(mask: ast.expr, array: ast.expr) -> bool:
    """Return True for a mask like ``array > 0``, which has the shape of ``array``."""
    return (
        isinstance(mask, ast.Compare)
        and ast.dump(mask.left) == ast.dump(array)
        and all(isinstance(other, ast.Constant) for other in mask.comparators)
    )


def _reduction_of(
    node: ast.Subscript, parents: Sequence[ast.AST], library: str
) -> tuple[ast.Call | None, str]:
    """Return the call that reduces `node`, such as ``x.sum()``, and the name of its function.

    `parents` are the syntax nodes that contain `node`, innermost first. The result is
    ``(None, '')`` if no call that can take a mask reduces `node`.
    """
    for outer in parents[:2]:
        if not isinstance(outer, ast.Call) or outer.keywords:
            continue
        name = outer.func
        if not isinstance(name, ast.Attribute) or name.attr not in _MASKED[library]:
            continue
        if name.value is node and not outer.args:
            return outer, name.attr
        if outer.args == [node] and ast.unparse(name.value) in _MODULES[library]:
            return outer, name.attr
    return None, ""


def _assignment(statement: ast.stmt) -> str:
    """Return code such as ``x = x.at[i].set(v)`` to replace ``x[i] = v``, or an empty string."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, method, value = statement.targets[0], "set", ast.unparse(statement.value)
    elif isinstance(statement, ast.AugAssign):
        target, method = statement.target, _IN_PLACE.get(type(statement.op))
        value = ast.unparse(statement.value)
        if isinstance(statement.op, ast.Sub):
            method, value = "add", f"-({value})"
    else:
        return ""
    if method is None or not isinstance(target, ast.Subscript):
        return ""
    array = ast.unparse(target.value)
    if not isinstance(target.value, ast.Name | ast.Attribute | ast.Subscript):
        return ""  # no target of an assignment
    # Unparse it inside of a subscript: else a tuple of slices gets parentheses, which is invalid.
    index = ast.unparse(ast.Subscript(ast.Name("_"), target.slice, ast.Load()))[2:-1]
    return f"{array} = {array}.at[{index}].{method}({value})"
