"""One finding: where, what depends on what, and what to write instead."""

from __future__ import annotations

import dataclasses

from voxax.check.codes import CODES, Code, Verdict
from voxax.check.source import Site, excerpt


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """Source lines that may replace others. Lines count from 1, both ends included.

    Attributes:
      first_line, last_line: what is replaced.
      text: the new lines.
      imports: statements that they need.
      pads: in place of a slice they have the whole, with zeros for what is not in the slice.
    """

    first_line: int
    last_line: int
    text: str
    imports: tuple[str, ...] = ()
    pads: bool = False


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that keeps a function from being one good static program.

    Attributes:
      code: e.g. ``VX101``; see :data:`voxax.check.CODES`.
      site: the user's line.
      message: one sentence about this place.
      depends_on: what the value was computed from, nearest first, arguments last.
      arguments: the arguments that the value depends on.
      fix: what to write instead, in words and code.
      rewrite: the same as an edit of the source, where it is mechanical.
      module: the submodule that it is in; empty for the whole.
      callers: the user's calls that lead there, innermost first.
      ignored: the reason given in the source for ignoring it; None when it counts.
    """

    code: str
    site: Site
    message: str
    depends_on: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    fix: str = ""
    rewrite: Rewrite | None = None
    module: str = ""
    callers: tuple[Site, ...] = ()
    ignored: str | None = None

    @property
    def about(self) -> Code:
        """What is known about its code."""
        return CODES[self.code]

    @property
    def severity(self) -> str:
        """How much it matters."""
        return self.about.severity

    @property
    def verdict(self) -> Verdict:
        """What it makes of the program; static where it is ignored."""
        return self.about.verdict if self.ignored is None else Verdict.STATIC

    @property
    def file(self) -> str:
        """Where it was found."""
        return self.site.file

    @property
    def line(self) -> int:
        """Of the file, from 1."""
        return self.site.line

    @property
    def column(self) -> int:
        """Of the line."""
        return self.site.column

    @property
    def why(self) -> str:
        """Why it keeps a program from being static."""
        return self.about.why

    def excerpt(self) -> str:
        """The source line with a caret."""
        return excerpt(self.site)
