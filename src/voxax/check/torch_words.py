"""From a question of a PyTorch program to a finding: its code, and what to write instead."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence

from voxax.check import rewrite_torch
from voxax.check.classify import (
    MAKE_SHAPES,
    alone,
    around,
    condition_of,
    cut_of,
    first_of,
    following,
    message,
    number_of,
)
from voxax.check.findings import Finding, Rewrite
from voxax.check.recording import Question
from voxax.check.source import enclosing

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def classify(question: Question) -> Finding:
    """The finding that a question is."""
    chain = enclosing(question.place.site)
    code, subject = _code(question, chain)
    text = message(code, dataclasses.replace(question, arguments=None))
    if question.arguments == frozenset():
        text += "; it depends on no argument: compute it once, in __init__"
    return Finding(
        code,
        question.place.site,
        text,
        question.chain,
        tuple(sorted(question.arguments or ())),
        _ROW if question.kind == "row" else _WORDS[code],
        _rewrite(code, question, chain, subject),
        question.module,
        question.place.callers,
    )


def _code(question: Question, chain: Sequence[ast.AST]) -> tuple[str, ast.AST | None]:
    """The code, and the syntax node that it is about."""
    kind, api = question.kind, question.place.api
    if kind == "mask":
        return "VX105", first_of(chain, ast.Subscript) or first_of(chain, ast.Call)
    if kind == "size":
        return "VX106", first_of(chain, ast.Call)
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
    if api == "one_hot":  # counts the classes, where nobody says how many there are
        return "VX106", first_of(chain, ast.Call)
    if api in MAKE_SHAPES:
        return "VX107", first_of(chain, ast.Call)
    if api is not None:
        return "VX112", first_of(chain, ast.Call)
    return number_of(chain)


def _rewrite(
    code: str, question: Question, chain: Sequence[ast.AST], subject: ast.AST | None
) -> Rewrite | None:
    statement = first_of(chain, ast.stmt)
    function = first_of(chain, _FUNCTIONS) or (chain[-1] if chain else ast.Module([], []))
    if not isinstance(statement, ast.stmt):
        return None
    # A flag that Python holds is better static.
    tensor = not question.dtype.startswith(("Python", "size"))
    made: Rewrite | None = None
    if isinstance(subject, ast.If) and tensor:
        made = rewrite_torch.branch(subject, following(chain, subject), function)
    elif isinstance(subject, ast.IfExp) and tensor:
        made = rewrite_torch.choice(subject, statement)
    elif isinstance(subject, ast.For) and isinstance(question.value, int):
        made = rewrite_torch.counted(subject, function, question.value)
    elif code == "VX104" and isinstance(subject, ast.Subscript):
        made = rewrite_torch.bounded_slice(subject, around(chain, subject), statement)
    elif code == "VX105" and isinstance(subject, ast.Subscript):
        made = rewrite_torch.masked(subject, around(chain, subject), statement)
    return made if made is not None and alone(question.place.site.file, made) else None


_ROW = (
    "PyTorch reads a single index as a number. x.index_select(0, i.reshape(1))[0] keeps it a tensor"
)

_WORDS = {
    "VX101": "compute both sides and choose with torch.where, or trace both with torch.cond",
    "VX102": "a loop to a fixed bound whose later turns torch.where discards, or torch.while_loop",
    "VX103": "a loop to a fixed bound whose later turns torch.where discards",
    "VX104": "keep the whole axis and mask what is outside of the slice: "
    "torch.where(torch.arange(len(x)) < n, x, 0), the condition with x's number of axes",
    "VX105": "keep the shape: torch.where(mask, x, 0), and divide by mask.sum() for a mean",
    "VX106": "keep the shape with a mask in place of the indices, or torch.nonzero_static(x, "
    "size=bound), or num_classes= for one_hot",
    "VX107": "make the shape a bound that always suffices and mask the rest, or pass the number "
    "as a Python argument: one program for each value",
    "VX108": "keep it a tensor: x.to(...) and functions of torch instead of int, float, math and "
    ".item(); or return it from the step and convert it outside",
    "VX109": "use torch instead of NumPy and lists inside of the step, or move the conversion out "
    "of it",
    "VX110": "check outside of the step, or with torch._assert_async",
    "VX111": "torch.stack the entries and index that, or compute all and choose with torch.where",
    "VX112": "pass a Python value: one program for each",
    "VX114": "return the value, and print it outside of the step",
}
