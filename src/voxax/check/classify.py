"""Turn recorded reads of traced values into findings: code, message, and what to write instead."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.recording import Question
from voxax.check.source import enclosing
from voxax.check.suggest import (
    FUNCTIONS,
    first_of,
    replaceable,
    stored,
    suggested,
    suggested_later,
)

# Functions whose arguments are shapes, in addition to those that call `canonicalize_shape`.
MAKE_SHAPES = {
    "arange", "linspace", "logspace", "geomspace", "eye", "identity", "tri", "tile", "indices",
    "one_hot", "_one_hot", "diag_indices", "tril_indices", "triu_indices", "mask_indices", "pad",
    "iota", "broadcasted_iota", "hanning", "hamming", "blackman", "bartlett", "kaiser", "repeat",
    "segment_sum", "segment_max", "segment_min", "segment_prod", "_scatter_reduce", "reshape",
    "resize", "vander", "permutation", "bincount", "histogram", "split", "array_split",
    # Functions of PyTorch.
    "view", "expand", "unflatten", "new_zeros", "new_ones", "new_full", "new_empty", "rand",
    "randn", "randint", "randperm", "chunk", "unfold", "repeat_interleave", "tensor_split",
    "interpolate", "zeros", "ones", "full", "empty",
}  # fmt: skip
# Functions, each with its argument for the number of results. Without this argument, the values
# decide the number, and no shape bounds it.
SIZE_ARGUMENT = {
    "repeat": "total_repeat_length",
    "bincount": "length",
    "segment_sum": "num_segments",
    "segment_max": "num_segments",
    "segment_min": "num_segments",
    "segment_prod": "num_segments",
}


# The argument that gives a function's results a fixed size, and the effect of the argument.
_FLAGS = {
    "roots": ("strip_zeros=False", "leading zeros then make some of the roots NaN"),
    "polydiv": ("trim_leading_zeros=False", "leading zeros then stay in the results"),
    "delete": ("assume_unique_indices=True", "the indices then have to differ"),
}


def classify(question: Question) -> Finding:
    """Return the finding (code, message, advice) for a read of a traced value in a JAX program.

    `question` is the record of the read.
    """
    chain = enclosing(question.place.site)
    code, subject = _code(question, chain)
    text = _message(code, question)
    if question.arguments == frozenset() and code != "VX113":
        text += "; it depends on no argument: compute it with NumPy, outside of the trace"
    words = ADVICE[code]
    if code == "VX101":
        words = ADVICE[_branched(code, subject)]
    if code in _OF_SIZES:
        called = _called(subject) if isinstance(subject, ast.Call) else ""
        words = _bound(question.place.api or called, subject) or words
    if code == "VX109" and isinstance(subject, ast.Call) and _has_twin(subject):
        words = ADVICE["VX109 twin"].format(name=_called(subject))
    return _finding(question, code, text, words, _suggestion(code, question, chain, subject, "jnp"))


def classify_torch(question: Question) -> Finding:
    """Return the finding (code, message, advice) for a read of a tensor's value in PyTorch.

    `question` is the record of the read.
    """
    chain = enclosing(question.place.site)
    code, subject = _torch_code(question, chain)
    text = _message(code, question)
    if question.arguments == frozenset():
        text += "; it depends on no argument: compute it once, in __init__"
    key = f"torch {code}"
    if question.kind == "row":
        key = "torch VX112 row"
    elif code == "VX101":
        key = _branched(key, subject)
    elif code in _OF_SIZES:
        key = _TORCH_SIZES.get(question.place.api or "", key)
    words = ADVICE[key]
    # No code is suggested for a branch on a Python number, which is better a static argument.
    flag = question.dtype.startswith(("Python", "size"))
    suggestion = ""
    if not (flag and isinstance(subject, ast.If | ast.IfExp)):
        suggestion = _suggestion(code, question, chain, subject, "torch")
    return _finding(question, code, text, words, suggestion)


_OF_SIZES = ("VX106", "VX107")
# Keys of ADVICE for functions whose results have a size that depends on data.
_TORCH_SIZES = {
    "nonzero": "torch VX106 nonzero",
    "where": "torch VX106 nonzero",
    "argwhere": "torch VX106 nonzero",
    "repeat_interleave": "torch VX107 repeat_interleave",
    "bincount": "torch VX107 bincount",
    "one_hot": "torch VX107 one_hot",
    "nms": "torch VX106 nms",
}


def _branched(key: str, branch: ast.AST | None) -> str:
    """Return the key of the table ``ADVICE`` for a traced value that is read as a condition.

    The result is `key`. If `branch`, the syntax node of the condition, is an ``if`` with a
    ``raise``, the result ends with ``raises``; with ``break`` or ``continue``, with ``in a loop``.
    """
    sides = (*branch.body, *branch.orelse) if isinstance(branch, ast.If) else ()
    if any(isinstance(side, ast.Raise) for side in sides):
        return f"{key} raises"
    if any(isinstance(side, ast.Break | ast.Continue) for side in sides):
        return f"{key} in a loop"
    return key


def _finding(question: Question, code: str, text: str, fix: str, suggestion: str) -> Finding:
    place, arguments = question.place, tuple(sorted(question.arguments or ()))
    return Finding(
        code,
        place.site,
        text,
        question.chain,
        arguments,
        fix,
        suggestion,
        question.module,
        place.callers,
    )


def _suggestion(
    code: str,
    question: Question,
    chain: Sequence[ast.AST],
    subject: ast.AST | None,
    library: str,
) -> str:
    statement = first_of(chain, ast.stmt)
    if not replaceable(question.place.site.file, statement):
        return ""
    if code == "VX104" and cut_of(chain) is None and isinstance(statement, ast.Assign):
        _, use, cut = next(_later_roles(chain), ("", (), None))
        return suggested_later(statement, use, cut, library)
    return suggested(code, chain, subject, library)


def _code(question: Question, chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """Return ``(code, syntax node)`` of the finding for a value that a JAX program reads.

    `question` is the recorded read, and `chain` has the syntax nodes that contain it, innermost
    first. The code is one such as ``VX105``, and the node is the faulty construct, such as a
    subscript, or None if the source does not show it.
    """
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
        indexed = inside is not None and inside is first_of(chain, ast.expr)
        return ("VX111", inside) if indexed else ("VX109", first_of(chain, ast.Call))
    if api is not None:
        return _static(question, chain)
    return number_of(chain)


def _torch_code(question: Question, chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """Return ``(code, syntax node)`` of the finding for a value that a PyTorch program reads.

    `question` is the recorded read, and `chain` has the syntax nodes that contain it, innermost
    first. The code is one such as ``VX105``, and the node is the faulty construct, such as a
    subscript, or None if the source does not show it.
    """
    kind, api = question.kind, question.place.api
    if kind == "mask":
        return "VX105", first_of(chain, ast.Subscript) or first_of(chain, ast.Call)
    if kind in ("size", "count"):
        return "VX106" if kind == "size" else "VX107", first_of(chain, ast.Call)
    if kind == "format":
        return "VX114", first_of(chain, ast.expr)
    if kind in ("tolist", "array"):
        return "VX109", first_of(chain, ast.Call)
    if kind == "row":
        return "VX112", first_of(chain, ast.Subscript)
    if kind == "bool":
        return condition_of(chain)
    cut = cut_of(chain)
    if cut is not None or kind == "slice" or api == "narrow":
        return "VX104", cut or first_of(chain, ast.Subscript)
    if api in MAKE_SHAPES:
        return "VX107", first_of(chain, ast.Call)
    if api is not None:
        return "VX112", first_of(chain, ast.Call)
    return number_of(chain)


def condition_of(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """Return ``(code, syntax node)`` of the finding for a value that is read as a condition.

    The node is an ``if``, for example. `chain` has the syntax nodes that contain the read,
    innermost first.
    """
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
    """Return ``(code, syntax node)`` of the finding for a traced value that has to be static.

    The value is an argument of a JAX function, such as a shape. `chain` is as in
    :func:`condition_of`.
    """
    api, inside = question.place.api or "", set(question.place.inside)
    call = first_of(chain, ast.Call)
    if cut := cut_of(chain):
        return "VX104", cut
    if api in MAKE_SHAPES or "canonicalize_shape" in inside or inside & MAKE_SHAPES:
        return "VX107", call
    if "size" in _parameters(api) or api in (*_FLAGS, "trim_zeros"):
        return "VX106", call
    return "VX112", call


def lacks_size(api: str, call: ast.AST | None) -> bool:
    """Return True if `call` lacks the argument that gives the result of `api` a fixed size.

    `call` is a call of the function `api`. The name of the argument is ``SIZE_ARGUMENT[api]``;
    without such an entry the result is False.
    """
    if api not in SIZE_ARGUMENT or not isinstance(call, ast.Call):
        return False
    if len(call.args) > 2 and api.startswith("segment"):
        return False
    return SIZE_ARGUMENT[api] not in [keyword.arg for keyword in call.keywords]


def _bound(api: str, call: ast.AST | None) -> str:
    """Return advice on the argument to add to `call` so that its result has a fixed size.

    `call` is the syntax node of a call of the function `api`. The text is empty if there is no such
    argument.
    """
    if lacks_size(api, call):
        return ADVICE["VX106 with an argument"].format(api=api, argument=SIZE_ARGUMENT[api])
    parameters = _parameters(api)
    if api in _FLAGS:
        flag, effect = _FLAGS[api]
        return ADVICE["VX106 with a flag"].format(api=api, flag=flag, effect=effect)
    if "size" not in parameters:
        return ""
    filled = "VX106 with a filling" if "fill_value" in parameters else "VX106 with an argument"
    return ADVICE[filled].format(api=api, argument="size")


def _parameters(api: str) -> Sequence[str]:
    function = getattr(jnp, api, None)
    try:
        return list(inspect.signature(function).parameters) if function else []
    except (TypeError, ValueError):
        return []


def number_of(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """Return ``(code, syntax node)`` of the finding for a value that becomes a Python number.

    The code depends on the use of the number, for example as a bound of a slice. `chain` is as in
    :func:`condition_of`.
    """
    if found := _role(chain):
        return found
    code = next((code for code, _, _ in _later_roles(chain)), "VX108")
    return code, first_of(chain, ast.Call)


def _later_roles(
    chain: Sequence[ast.AST],
) -> Iterator[tuple[str, Sequence[ast.AST], ast.AST | None]]:
    """Yield ``(code, chain, node)`` for each later use of a number that is assigned to a name.

    The argument `chain` has the syntax nodes that contain the number, innermost first. In the
    result, `chain` has the nodes that contain the later use, and `code` is the code of the finding
    for this use. `node` is the construct that uses the number, such as a loop or a slice.
    """
    statement, function = first_of(chain, ast.stmt), first_of(chain, FUNCTIONS)
    for name in stored([statement]) if isinstance(statement, ast.Assign) else []:
        for use in _loads(function, name, statement):
            if found := _role(use):
                yield found[0], use, found[1]


def _role(chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None] | None:
    """Return ``(code, node)`` of the finding for the way in which a value is used, or None.

    `node` is the construct that uses the value, such as a slice or a loop. None means that no such
    construct is in the statement. `chain` has the syntax nodes from the value outwards.
    """
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
        # If the subscript itself reads the value, there is no inner expression.
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
    """Return True if `node` is a loop or comprehension over the entries of the expression `inner`.

    If `inner` is None, any loop or comprehension gives True. Python up to 3.12 reports the whole
    loop as the place of the read, so that there is no inner expression.
    """
    if isinstance(node, ast.For):
        return inner is None or node.iter is inner
    if not isinstance(node, _COMPREHENSIONS):
        return False
    return inner is None or any(g.iter is inner for g in node.generators)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def cut_of(chain: Sequence[ast.AST]) -> ast.Subscript | None:
    """Return the subscript, such as ``x[:n]``, whose slice contains or is ``chain[0]``; else None.

    `chain` is as in :func:`condition_of`.
    """
    inside = False
    for node in chain:
        inside = inside or isinstance(node, ast.Slice)
        if isinstance(node, ast.Subscript):
            cut = node.slice
            parts = cut.elts if isinstance(cut, ast.Tuple) else [cut]
            # If JAX itself reads the value, the innermost expression is the whole subscript.
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


def _loads(function: ast.AST | None, name: str, after: ast.AST | None) -> list[list[ast.AST]]:
    """Return the reads of `name` in `function` that come after the statement `after`.

    Each read is given by the syntax nodes that contain it, innermost first.
    """
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


def _message(code: str, question: Question) -> str:
    """Return the message of the finding `code`, such as ``a bound of this slice is ...``.

    `question` is the read that the finding is about; the message names its value or function.
    """
    aval = f"{question.dtype}[{','.join(map(str, question.shape))}]"
    value = f"a traced value ({aval})"
    value = _UNTYPED.get(question.dtype, value)
    api = question.place.api
    return {
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


# Descriptions of values without a dtype, by the word that replaces the dtype.
_UNTYPED = {
    "size": "a size that depends on data",  # in PyTorch only
    "loop": "a value of a compiled loop or function",
}


def _named(api: str | None) -> str:
    return "the index" if api in ("__getitem__", "__setitem__") else f"`{api}`"


# Functions of jax.numpy that run on the host: they read or write files and text.
_ON_THE_HOST = {
    "save", "savez", "load", "frombuffer", "fromfile", "fromstring", "array_repr", "array_str",
    "printoptions", "set_printoptions", "get_printoptions", "from_dlpack", "iterable",
}  # fmt: skip


def _has_twin(call: ast.Call) -> bool:
    """Return True for a call of a NumPy function that jax.numpy has too."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    called = _called(call)
    numpy = isinstance(of, ast.Name) and of.id in ("np", "numpy", "onp")
    return numpy and called not in _ON_THE_HOST and hasattr(jnp, called)
