"""The report: a verdict, one for each submodule, and every finding."""

from __future__ import annotations

import dataclasses
from typing import Any

from voxax.check.codes import Verdict
from voxax.check.finding import Finding

_SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Report:
    """What :func:`voxax.check_static` found.

    Attributes:
      name: of what was checked.
      verdict: of the whole.
      findings: all of them, by place; also those that the source ignores.
      modules: the verdict of each submodule by its path.
      static_arguments: Python arguments that must be static: each value has its own program.
      programs: how many programs the given examples need.
      framework: ``jax`` or ``torch``.
      incomplete: why the search for findings ended early; empty when it did not.
    """

    name: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    modules: dict[str, Verdict]
    static_arguments: tuple[str, ...]
    programs: int
    incomplete: str = ""
    verification: Any = None
    subject: Any = dataclasses.field(default=None, repr=False, compare=False)
    arguments: Any = dataclasses.field(default=None, repr=False, compare=False)
    framework: str = "jax"

    @property
    def counted(self) -> tuple[Finding, ...]:
        """The findings that the source does not ignore."""
        return tuple(f for f in self.findings if f.ignored is None)

    def fails(self, on: str = "error") -> bool:
        """Whether some finding is at least as severe as ``on``: error, warning or note."""
        limit = _SEVERITIES.index(on)
        wrong = self.verification is not None and not self.verification.holds
        return wrong or any(_SEVERITIES.index(f.severity) <= limit for f in self.counted)

    def __str__(self) -> str:
        from voxax.check.render import plain

        return plain(self)
