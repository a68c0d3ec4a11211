"""Findings of the checker: codes, verdicts, places in the source, and comments that ignore them.

The comment ``# voxax: ignore[CODE] reason`` in the source ignores a finding.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import linecache
import re
import tokenize
from collections.abc import Sequence

from voxax.check.source import Place, Site, excerpt, statement_lines


class Verdict(enum.StrEnum):
    """How well a function compiles to one static program; members are sorted from best to worst.

    ``PER_VALUE`` needs one program for each value of some Python argument. ``BOUNDED`` has a size
    that depends on values of arrays, but that has an upper bound.
    """

    STATIC = "static"
    PER_VALUE = "static per value"
    BOUNDED = "bounded dynamic"
    NOT_STATIC = "not static"


_ORDER = list(Verdict)


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the worst of the verdicts, or `Verdict.STATIC` for an empty list."""
    return max(verdicts, key=_ORDER.index, default=Verdict.STATIC)


@dataclasses.dataclass(frozen=True)
class Code:
    """The properties that all findings with one code, such as VX101, share.

    `verdict` is the best verdict that a function with such a finding can have. `why` is the reason
    why XLA cannot compile the user's code, or the cost of compiling it.
    """

    name: str
    title: str
    severity: str
    verdict: Verdict
    why: str

    @property
    def page(self) -> str:
        """The path of the page about this code, relative to the root of the documentation."""
        return f"check/{self.name}.md"


_PROGRAM = "XLA compiles the whole function before any value exists"

_TABLE = [
    # Value decides the program.
    ("VX101", "branch on a traced value", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so Python cannot know which side to trace"),
    ("VX102", "while loop on a traced value", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so Python cannot know how often to trace the body"),
    ("VX103", "loop count is a traced value", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so Python cannot know how many copies of the body to trace"),
    ("VX104", "slice with a traced bound", "error", Verdict.BOUNDED,
     "the shape of the result would depend on a value; its bound is the axis that is sliced"),
    ("VX105", "boolean mask as an index", "error", Verdict.BOUNDED,
     "the number of rows depends on how many entries of the mask are true; its bound is the mask's "
     "size"),
    ("VX106", "output size depends on values", "error", Verdict.BOUNDED,
     "the number of results depends on values; XLA needs a fixed size"),
    ("VX107", "shape computed from a traced value", "error", Verdict.NOT_STATIC,
     "every shape is part of the compiled program, and this one is known only when it runs"),
    ("VX108", "traced value turned into a Python number", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so there is no number to give to Python"),
    ("VX109", "traced value handed to NumPy or the host", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}; NumPy needs the values at once"),
    ("VX110", "assertion about a traced value", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so the assertion has no value to test"),
    ("VX111", "Python container indexed with a traced value", "error", Verdict.NOT_STATIC,
     "a list, tuple, dict or NumPy array is looked up while the program is built, when the index "
     "has no value"),
    ("VX112", "traced value as a static argument", "error", Verdict.NOT_STATIC,
     "the argument decides what is compiled (an axis, a size, a mode), so it must be a Python "
     "value"),
    ("VX113", "assignment into an array", "error", Verdict.NOT_STATIC,
     "JAX arrays are immutable, so that XLA may reorder the operations"),
    ("VX114", "traced value formatted as text", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}, so there is no number to print"),
    ("VX115", "traced value used as a key", "error", Verdict.NOT_STATIC,
     f"{_PROGRAM}; hashing needs the value"),
    ("VX190", "JAX cannot trace this", "error", Verdict.NOT_STATIC,
     "tracing the function raised the error that is shown"),
    ("VX191", "fails on the example inputs", "error", Verdict.NOT_STATIC,
     "the function raises this without jit too, so there is nothing to compile"),
    ("VX192", "torch.export cannot trace this", "error", Verdict.NOT_STATIC,
     "exporting the module raised the error that is shown, so there is no program to compile"),
    # Compiled more often than needed.
    ("VX201", "Python argument that recompiles", "warning", Verdict.PER_VALUE,
     "a Python value that decides the program must be static, and each value has its own program"),
    ("VX202", "shapes differ between the examples", "warning", Verdict.STATIC,
     "every shape is part of the compiled program: each needs its own"),
    ("VX203", "dtypes differ between calls", "warning", Verdict.STATIC,
     "dtype and weak type are part of the compiled program: each combination needs its own"),
    ("VX204", "structures differ between the examples", "warning", Verdict.STATIC,
     "the structure of the arguments is part of the compiled program: each needs its own"),
    ("VX205", "the trace is not repeatable", "warning", Verdict.STATIC,
     "values that Python computes while tracing become constants; the next program has others"),
    # Inside of the program.
    ("VX301", "leaked tracer", "error", Verdict.STATIC,
     "a value of the trace outlives it; using it later raises UnexpectedTracerError"),
    ("VX302", "host callback in the step", "warning", Verdict.STATIC,
     "the device waits for Python in every step, and the program cannot run without it"),
    ("VX303", "transfer in the step", "warning", Verdict.STATIC,
     "moving an array between devices or memories stalls the program in every step"),
    ("VX304", "large constant in the program", "warning", Verdict.STATIC,
     "a captured array is stored in every program that is compiled, and slows down compilation"),
    ("VX305", "64-bit values silently cut to 32", "warning", Verdict.STATIC,
     "64-bit types are off in JAX by default; the values lose precision or overflow"),
    ("VX306", "silent promotion to a wider dtype", "warning", Verdict.STATIC,
     "one operand of a wider dtype widens the result and all that is computed from it: twice "
     "the memory traffic"),
    ("VX307", "where with a gradient that is NaN", "warning", Verdict.STATIC,
     "where differentiates both sides; zero times an infinite slope of the unused side is NaN"),
    ("VX308", "debugging callback in the step", "note", Verdict.STATIC,
     "the device sends values to Python in every step"),
    ("VX309", "capacity far above its use", "warning", Verdict.STATIC,
     "every layer computes all rows of the capacity, used or not"),
    ("VX310", "kernel map built more than once", "warning", Verdict.STATIC,
     "building a map takes as long as a layer"),
    ("VX311", "write that keeps the graph of gradients", "note", Verdict.STATIC,
     "the tensors of every call stay in memory, and a second backward goes through the first call"),
]  # fmt: skip

CODES = {row[0]: Code(*row) for row in _TABLE}


@dataclasses.dataclass(frozen=True)
class Finding:
    """A problem in the source that prevents one static program, or makes it slow or wrong.

    Attributes:
      code: the code of the problem, e.g. ``VX101``; see :data:`voxax.check.CODES`.
      site: the place in the user's source.
      message: one sentence about this place.
      depends_on: the steps that compute the offending value from the arguments, last step first.
      arguments: the names of the arguments that the offending value depends on.
      fix: what to write instead, in words and code.
      suggestion: the new statement, with the names of the source; empty if it cannot be derived
        from the syntax.
      module: the path of the submodule that contains the place; empty outside of submodules.
      callers: the user's calls that lead to the place, innermost first.
      ignored: the reason in a source comment that ignores this finding; None without a comment.
      reason: why this is a problem, if the usual reason for `code` does not fit; else empty.
    """

    code: str
    site: Site
    message: str
    depends_on: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    fix: str = ""
    suggestion: str = ""
    module: str = ""
    callers: tuple[Site, ...] = ()
    ignored: str | None = None
    reason: str = ""

    @classmethod
    def at(
        cls,
        where: Place | Site,
        code: str,
        message: str,
        fix: str,
        module: str = "",
        reason: str = "",
    ) -> Finding:
        """Make a finding at `where`: a site in the source, or a place, which also has the callers.

        The other arguments are attributes of the finding.
        """
        site, callers = (where.site, where.callers) if isinstance(where, Place) else (where, ())
        return cls(code, site, message, fix=fix, module=module, callers=callers, reason=reason)

    @property
    def about(self) -> Code:
        """The properties of all findings with the same code."""
        return CODES[self.code]

    @property
    def severity(self) -> str:
        """One of ``error``, ``warning`` and ``note``."""
        return self.about.severity

    @property
    def verdict(self) -> Verdict:
        """The verdict on a program with only this finding; `Verdict.STATIC` if it is ignored."""
        return self.about.verdict if self.ignored is None else Verdict.STATIC

    @property
    def file(self) -> str:
        """The path of the source file."""
        return self.site.file

    @property
    def line(self) -> int:
        """The line in the file, counted from 1."""
        return self.site.line

    @property
    def column(self) -> int:
        """The column in the line, counted from 1."""
        return self.site.column

    @property
    def why(self) -> str:
        """The reason why XLA cannot compile the code at this place, or the cost of compiling it."""
        return self.reason or self.about.why

    def excerpt(self) -> str:
        """Return the source line, and a line of carets that mark the place."""
        return excerpt(self.site)


_COMMENT = re.compile(r"#\s*voxax:\s*ignore\[([^\]]*)\]\s*(.*)")


def with_ignores(findings: Sequence[Finding]) -> list[Finding]:
    """Return copies of the findings, with `ignored` set from comments ``# voxax: ignore``.

    `ignored` is the reason in a comment that names the finding's code at its statement. It is None
    if there is no such comment.
    """
    return [dataclasses.replace(f, ignored=_reason(f)) for f in findings]


def _reason(finding: Finding) -> str | None:
    comments = _comments(tuple(linecache.getlines(finding.file)))
    first, last = statement_lines(finding.site)
    for line in (first - 1, *range(first, last + 1)):
        for codes, reason, alone in comments.get(line, ()):
            if finding.code in codes and (alone or line >= first):
                return reason or "no reason given"
    return None


@functools.lru_cache(maxsize=64)
def _comments(lines: tuple[str, ...]) -> dict[int, list[tuple[frozenset[str], str, bool]]]:
    found: dict[int, list[tuple[frozenset[str], str, bool]]] = {}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO("".join(lines)).readline))
    except (tokenize.TokenError, SyntaxError):
        return found
    for token in tokens:
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            codes = frozenset(code.strip() for code in match[1].split(","))
            alone = not token.line[: token.start[1]].strip()
            found.setdefault(token.start[0], []).append((codes, match[2].strip(), alone))
    return found
