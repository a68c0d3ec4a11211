"""From a question for a value to a finding: its code, what it is about, and what to write."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Sequence

import jax.numpy as jnp

from voxax.check import rewrite as rewrites
from voxax.check.findings import Finding, Rewrite
from voxax.check.recording import Question
from voxax.check.source import enclosing

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

# Functions of JAX whose arguments are shapes, beside those that ask `canonicalize_shape`.
MAKE_SHAPES = {
    "arange", "linspace", "logspace", "geomspace", "eye", "identity", "tri", "tile", "indices",
    "one_hot", "_one_hot", "diag_indices", "tril_indices", "triu_indices", "mask_indices", "pad",
    "iota", "broadcasted_iota", "hanning", "hamming", "blackman", "bartlett", "kaiser", "repeat",
    "segment_sum", "segment_max", "segment_min", "segment_prod", "_scatter_reduce", "reshape",
    "resize", "vander", "permutation", "bincount", "histogram", "split", "array_split",
    # Of PyTorch.
    "view", "expand", "unflatten", "new_zeros", "new_ones", "new_full", "new_empty", "rand",
    "randn", "randint", "randperm", "chunk", "unfold", "repeat_interleave", "tensor_split",
    "interpolate", "zeros", "ones", "full", "empty",
}  # fmt: skip
# Without it, they count values to know how many results there are.
SIZE_ARGUMENT = {
    "repeat": "total_repeat_length",
    "bincount": "length",
    "segment_sum": "num_segments",
    "segment_max": "num_segments",
    "segment_min": "num_segments",
    "segment_prod": "num_segments",
}


def classify(question: Question) -> Finding:
    """The finding that a question is."""
    chain = enclosing(question.place.site)
    code, subject = _code(question, chain)
    fix, rewrite = _advice(code, question, chain, subject)
    return Finding(
        code,
        question.place.site,
        message(code, question),
        question.chain,
        tuple(sorted(question.arguments or ())),
        fix,
        rewrite,
        question.module,
        question.place.callers,
    )


def _code(question: Question, chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """The code, and the syntax node that it is about."""
    kind, api = question.kind, question.place.api
    if kind == "mask":
        return "VX105", first_of(chain, ast.Subscript)
    if kind == "setitem":
        return "VX113", first_of(chain, ast.stmt)
    if kind == "format":
        return "VX114", first_of(chain, ast.expr)
    if kind == "hash":
        return "VX115", first_of(chain, ast.expr)
    if kind == "bool" and api is None:
        return condition_of(chain)
    if kind in ("tolist", "tobytes", "dlpack"):
        return "VX109", first_of(chain, ast.Call)
    if api in ("item", "_item"):
        return number_of(chain)
    if kind == "array":
        inside = first_of(chain, ast.Subscript)
        indexed = inside is not None and inside is next(iter(_expressions(chain)), None)
        return ("VX111", inside) if indexed else ("VX109", first_of(chain, ast.Call))
    if api is not None:
        return _static(question, chain)
    return number_of(chain)


def condition_of(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """The code of a condition, from the statement that it decides."""
    inner: ast.AST | None = None
    for node in chain:
        if isinstance(node, ast.IfExp) and node.test is inner:
            return "VX101", node
        if isinstance(node, ast.While):
            return "VX102", node
        if isinstance(node, ast.Assert):
            return "VX110", node
        if isinstance(node, ast.If):
            return "VX101", node
        if isinstance(node, ast.stmt | ast.Lambda):
            break
        inner = node
    return "VX101", first_of(chain, ast.BoolOp) or first_of(chain, ast.Call) or first_of(
        chain, ast.expr
    )


def _static(question: Question, chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """A function of JAX needs a value."""
    api, inside = question.place.api or "", set(question.place.inside)
    call = first_of(chain, ast.Call)
    if cut := cut_of(chain):
        return "VX104", cut
    if lacks_size(api, call):
        return "VX106", call
    if api in MAKE_SHAPES or "canonicalize_shape" in inside or inside & MAKE_SHAPES:
        return "VX107", call
    if "size" in _parameters(api):
        return "VX106", call
    return "VX112", call


def lacks_size(api: str, call: ast.AST | None) -> bool:
    """Whether a call counts values for want of the argument that says how many results there are.

    Counts that are one number for all rows make a shape, as in ``jnp.repeat(x, n)``.
    """
    if api not in SIZE_ARGUMENT or not isinstance(call, ast.Call):
        return False
    if len(call.args) > 2 and api.startswith("segment"):
        return False
    return SIZE_ARGUMENT[api] not in [keyword.arg for keyword in call.keywords]


def _parameters(api: str) -> Sequence[str]:
    function = getattr(jnp, api, None)
    try:
        return list(inspect.signature(function).parameters) if function else []
    except (TypeError, ValueError):
        return []


def number_of(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """Python takes a number: what for decides."""
    if found := _role(chain):
        return found
    statement, function = first_of(chain, ast.stmt), first_of(chain, _FUNCTIONS)
    names = rewrites.stored([statement]) if isinstance(statement, ast.Assign) else []
    for name in names:
        for use in _loads(function, name, statement):
            if found := _role(use):
                return found[0], first_of(chain, ast.Call)
    return "VX108", first_of(chain, ast.Call)


def _role(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None] | None:
    """What the innermost expression of a chain is used for."""
    if cut := cut_of(chain):
        return "VX104", cut
    inner: ast.AST | None = None
    for node in chain:
        if isinstance(node, ast.Call):
            name = _called(node)
            if name == "range":
                loop = next((n for n in chain if isinstance(n, ast.For)), None)
                return "VX103", loop if loop is not None and loop.iter is node else node
            if inner is not node.func and name in MAKE_SHAPES:
                return "VX107", node
        # Where the subscript itself asks, there is no inner expression.
        if isinstance(node, ast.Subscript) and (inner is node.slice or inner is None):
            return "VX111", node
        if isinstance(node, ast.If | ast.While | ast.Assert) and inner is node.test:
            code = {ast.If: "VX101", ast.While: "VX102", ast.Assert: "VX110"}[type(node)]
            return code, node
        if isinstance(node, ast.IfExp) and inner is node.test:
            return "VX101", node
        if _goes_through(node, inner):
            return "VX103", node
        if isinstance(node, ast.stmt):
            return None
        inner = node
    return None


def _goes_through(node: ast.AST, inner: ast.AST | None) -> bool:
    """Whether a loop or comprehension takes one entry of an expression after another.

    Where Python asks for the entries, the place is the whole loop, until Python 3.12.
    """
    if isinstance(node, ast.For):
        return inner is None or node.iter is inner
    if not isinstance(node, _COMPREHENSIONS):
        return False
    return inner is None or any(g.iter is inner for g in node.generators)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def cut_of(chain: Sequence[ast.AST]) -> ast.Subscript | None:
    """The subscript in whose slice the innermost expression is."""
    inside = False
    for node in chain:
        inside = inside or isinstance(node, ast.Slice)
        if isinstance(node, ast.Subscript):
            cut = node.slice
            parts = cut.elts if isinstance(cut, ast.Tuple) else [cut]
            # Where JAX itself asks, the innermost expression is the whole subscript.
            whole = node is chain[0] and any(isinstance(p, ast.Slice) for p in parts)
            return node if inside or whole else None
        if isinstance(node, ast.stmt):
            return None
    return None


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def first_of(chain: Sequence[ast.AST], kinds: type | tuple[type, ...]) -> ast.AST | None:
    """The innermost node of some kinds."""
    return next((node for node in chain if isinstance(node, kinds)), None)


def _expressions(chain: Sequence[ast.AST]) -> list[ast.AST]:
    return [node for node in chain if isinstance(node, ast.expr)]


def _loads(function: ast.AST | None, name: str, after: ast.AST | None) -> list[list[ast.AST]]:
    """Chains of the places that read a name after a statement, innermost first."""
    if function is None or after is None:
        return []
    found: list[list[ast.AST]] = []

    def visit(node: ast.AST, outer: list[ast.AST]) -> None:
        chain = [node, *outer]
        loads = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        if loads and node.lineno > (after.end_lineno or 0):  # pyright: ignore[reportAttributeAccessIssue]
            found.append(chain)
        for child in ast.iter_child_nodes(node):
            visit(child, chain)

    visit(function, [])
    return found


def message(code: str, question: Question) -> str:
    """One sentence about a place."""
    aval = f"{question.dtype}[{','.join(map(str, question.shape))}]"
    value = f"a traced value ({aval})"
    value = _UNTYPED.get(question.dtype, value)
    api = question.place.api
    text = {
        "VX101": f"which side is taken depends on {value}",
        "VX102": f"whether the loop goes on depends on {value}",
        "VX103": f"the number of turns is {value}",
        "VX104": f"a bound of this slice is {value}",
        "VX105": f"the index is a boolean mask, {value}",
        "VX106": f"how many results `{api}` has depends on {value}",
        "VX107": f"a shape is computed from {value}",
        "VX108": f"{value} is turned into a Python number",
        "VX109": f"{value} is handed to NumPy or to Python",
        "VX110": f"the assertion is about {value}",
        "VX111": f"a Python container is indexed with {value}",
        "VX112": f"{_named(api)} needs a value while it is traced, and got {value}",
        "VX113": "the array is assigned to in place",
        "VX114": f"{value} is formatted",
        "VX115": f"{value} is used as a key",
    }[code]
    if question.arguments == frozenset() and code not in ("VX113",):
        text += "; it depends on no argument: compute it with NumPy, outside of the trace"
    return text


# In place of the dtype.
_UNTYPED = {
    "size": "a size that depends on data",  # of PyTorch
    "loop": "a value of a compiled loop or function",
}


def _named(api: str | None) -> str:
    return "the index" if api in ("__getitem__", "__setitem__") else f"`{api}`"


def _advice(
    code: str, question: Question, chain: Sequence[ast.AST], subject: ast.AST | None
) -> tuple[str, Rewrite | None]:
    statement = first_of(chain, ast.stmt)
    function = first_of(chain, _FUNCTIONS) or (chain[-1] if chain else ast.Module([], []))
    made: Rewrite | None = None
    api = question.place.api or ""
    if not isinstance(statement, ast.stmt):
        return _WORDS[code].format(api=api, size="size"), None
    if isinstance(subject, ast.If):
        made = rewrites.branch(subject, following(chain, subject), function)
    elif isinstance(subject, ast.IfExp):
        made = rewrites.choice(subject, statement)
    elif isinstance(subject, ast.While):
        made = rewrites.repeated(subject, function)
    elif isinstance(subject, ast.For):
        made = rewrites.counted(subject, function)
    elif code == "VX104" and isinstance(subject, ast.Subscript):
        made = rewrites.bounded_slice(subject, around(chain, subject), statement)
    elif code == "VX105" and isinstance(subject, ast.Subscript):
        made = rewrites.masked(subject, around(chain, subject), statement)
    elif code == "VX113":
        made = rewrites.assignment(statement)
    elif code == "VX109" and isinstance(subject, ast.Call) and _has_twin(subject):
        return f"jnp.{_called(subject)} computes the same inside of the program", None
    size = SIZE_ARGUMENT.get(api, "size")
    if made is not None and not alone(question.place.site.file, made):
        made = None
    return _WORDS[code].format(api=api, size=size), made


# In jax.numpy too, but for the host: they read or write files and text.
_ON_THE_HOST = {
    "save", "savez", "load", "frombuffer", "fromfile", "fromstring", "array_repr", "array_str",
    "printoptions", "set_printoptions", "get_printoptions", "from_dlpack", "iterable",
}  # fmt: skip


def _has_twin(call: ast.Call) -> bool:
    """Whether jax.numpy computes what this call of NumPy does."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    called = _called(call)
    numpy = isinstance(of, ast.Name) and of.id in ("np", "numpy", "onp")
    return numpy and called not in _ON_THE_HOST and hasattr(jnp, called)


def around(chain: Sequence[ast.AST], node: ast.AST) -> Sequence[ast.AST]:
    """The nodes around one of a chain."""
    return chain[list(chain).index(node) + 1 :]


def alone(file: str, rewrite: Rewrite) -> bool:
    """Whether the lines hold what is replaced and nothing else.

    An ``elif`` is a statement of its own in the syntax tree, and not one in the source.
    """
    lines = linecache.getlines(file)[rewrite.first_line - 1 : rewrite.last_line]
    if not lines or lines[0].split(maxsplit=1)[0] == "elif" or any(";" in line for line in lines):
        return False
    given, new = lines[0], rewrite.text
    return given[: len(given) - len(given.lstrip())] == new[: len(new) - len(new.lstrip())]


def following(chain: Sequence[ast.AST], node: ast.stmt) -> Sequence[ast.stmt]:
    """The statements after one in its block."""
    parent = chain[list(chain).index(node) + 1] if node is not chain[-1] else None
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and node in block:
            return block[block.index(node) + 1 :]
    return ()


_WORDS = {
    "VX101": "compute both sides and choose with jnp.where, or trace both with jax.lax.cond",
    "VX102": "jax.lax.while_loop, or a bounded jax.lax.fori_loop with a mask where gradients are "
    "needed",
    "VX103": "jax.lax.fori_loop, or a loop to a fixed bound whose later turns are masked out",
    "VX104": "keep the whole axis and mask what is outside of the slice; a window of constant "
    "length is jax.lax.dynamic_slice_in_dim, which moves the window where it would pass the end. A "
    "negative bound counts from the end: add the axis's length to it",
    "VX105": "keep the shape: jnp.where(mask, x, 0), a reduction with where=mask, or "
    "jnp.nonzero(mask, size=bound, fill_value=...)",
    "VX106": "give `{api}` the argument {size}= with a bound that always suffices, and fill_value= "
    "for the rest",
    "VX107": "make the shape a bound that always suffices and mask the rest, or pass the number as "
    "a static argument (static_argnames=)",
    "VX108": "keep it an array: x.astype(...) and functions of jnp instead of int, float, math and "
    ".item(); or return it from the step and convert it outside",
    "VX109": "use jnp in place of np inside of the step, or move the conversion out of it",
    "VX110": "check outside of the step, or with jax.experimental.checkify",
    "VX111": "stack the entries into an array and index that, or choose between functions with "
    "jax.lax.switch",
    "VX112": "pass a Python value, and mark the argument static (static_argnames=)",
    "VX113": "x = x.at[i].set(v) makes a new array; under jit it is updated in place",
    "VX114": "jax.debug.print prints from inside of the program; or return the value and print it "
    "outside",
    "VX115": "look it up outside of the step, or index an array",
}
