"""The report of a check, and its output as text, JSON, SARIF or commands of GitHub workflows."""

from __future__ import annotations

import dataclasses
import json
import os
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from voxax.check.findings import CODES, Finding, Verdict
from voxax.check.source import Site, is_file, relative

_SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of :func:`voxax.check_static`.

    Attributes:
      name: name of the function or module.
      verdict: verdict on the whole function or module.
      findings: all findings, sorted by place, including findings that the source ignores.
      modules: verdict on each submodule, by the path of the submodule.
      static_arguments: names of the Python arguments that must be static, so that every value of
          such an argument needs a separate program.
      programs: number of programs that are compiled for the given examples.
      framework: ``jax`` or ``torch``.
      incomplete: reason why the search for findings ended early; empty if it was complete.
      verification: result of ``verify=True``, which may contradict the verdict; else None.
      subject, arguments: the checked target and its example arguments, in internal form.
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
        """Return True if a finding is at least as severe as ``on``, or if verification fails.

        `on` is ``error``, ``warning`` or ``note``. Findings that the source ignores do not count.
        """
        limit = _SEVERITIES.index(on)
        wrong = self.verification is not None and not self.verification.holds
        return wrong or any(_SEVERITIES.index(f.severity) <= limit for f in self.counted)

    def __str__(self) -> str:
        return plain(self)


_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}


def plain(report: Report) -> str:
    """Return the report as text without colors."""
    return "\n".join(text for text, _ in styled(report))


def styled(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the lines of the report as ``(text, style)``, with styles of the package ``rich``."""
    good = report.verdict is Verdict.STATIC
    yield f"{report.name}: {report.verdict}", "bold green" if good else "bold"
    if report.static_arguments:
        names = ", ".join(f"`{name}`" for name in report.static_arguments)
        count = f"{report.programs} program{'s' if report.programs != 1 else ''}"
        yield f"  one program for each value of {names}; the examples need {count}", ""
    if report.incomplete:
        yield f"  not everything was looked at: {report.incomplete}", "yellow"
    for finding in report.counted:
        yield "", ""
        yield from _finding_lines(finding)
    ignored = len(report.findings) - len(report.counted)
    if ignored:
        yield "", ""
        yield f"{ignored} ignored in the source", "dim"
    if set(report.modules.values()) - {Verdict.STATIC}:
        yield "", ""
        width = max(map(len, report.modules))
        for path, verdict in report.modules.items():
            yield f"  {path:<{width}}  {verdict}", "" if verdict is Verdict.STATIC else "bold"
    if report.verification is not None:
        yield "", ""
        yield str(report.verification), "green" if report.verification.holds else "bold red"


def _finding_lines(finding: Finding) -> Iterator[tuple[str, str]]:
    where = f"{relative(finding.file)}:{finding.line}:{finding.column}"
    color = _COLORS[finding.severity]
    yield f"{where}: {finding.severity} {finding.code}: {finding.message}", color
    for line in finding.excerpt().splitlines():
        yield f"    {line}", "bold"
    if finding.depends_on:
        yield f"  depends on: {' <- '.join(finding.depends_on)}", ""
    if finding.module:
        yield f"  in: {finding.module}", ""
    for caller in finding.callers[:3]:
        yield f"  called from: {relative(caller.file)}:{caller.line}, {caller.function}", "dim"
    yield f"  why: {finding.why}", ""
    if finding.fix:
        yield f"  instead: {finding.fix}", ""
    for line in finding.suggestion.splitlines():
        yield f"    {line}", "green"


_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(reports: Sequence[Report]) -> str:
    """Return the reports, with all their findings, as a JSON list."""
    return json.dumps([_report_json(report) for report in reports], indent=2)


def _report_json(report: Report) -> dict[str, Any]:
    verification = report.verification
    return {
        "name": report.name,
        "verdict": str(report.verdict),
        "modules": {path: str(verdict) for path, verdict in report.modules.items()},
        "static_arguments": list(report.static_arguments),
        "programs": report.programs,
        "incomplete": report.incomplete,
        "verification": None if verification is None else dataclasses.asdict(verification),
        "findings": [_finding_json(finding) for finding in report.findings],
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "verdict": str(finding.verdict),
        **dataclasses.asdict(finding.site),
        "message": finding.message,
        "excerpt": finding.excerpt(),
        "depends_on": list(finding.depends_on),
        "arguments": list(finding.arguments),
        "why": finding.why,
        "fix": finding.fix,
        "suggestion": finding.suggestion,
        "module": finding.module,
        "callers": [dataclasses.asdict(caller) for caller in finding.callers],
        "ignored": finding.ignored,
        "page": finding.about.page,
    }


def as_sarif(reports: Sequence[Report]) -> str:
    """Return the findings of all reports as a SARIF log; ignored findings are suppressed in it."""
    findings = [finding for report in reports for finding in report.findings]
    used = sorted({finding.code for finding in findings})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code].title},
            "fullDescription": {"text": CODES[code].why},
            "defaultConfiguration": {"level": CODES[code].severity},
        }
        for code in used
    ]
    run = {
        "tool": {"driver": {"name": "voxax check", "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, used.index(finding.code)) for finding in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message}. Instead: {finding.fix}"},
        "locations": [_location(finding.site)],
    }
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.ignored}]
    return result


def _location(site: Site) -> dict[str, Any]:
    if not is_file(site.file):  # code from a prompt: a viewer has no file to open
        return {"logicalLocations": [{"name": site.function, "kind": "function"}]}
    region = {
        "startLine": site.line,
        "startColumn": site.column,
        "endLine": site.end_line,
        "endColumn": max(site.end_column, 1),
    }
    artifact = {"uri": _uri(site.file)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _uri(file: str) -> str:
    """Return a file's URI (RFC 3986), relative to the working directory for files inside it."""
    near = relative(file)
    if os.path.isabs(near):
        return Path(near).as_uri()
    return urllib.parse.quote(near.replace(os.sep, "/"))


def as_github(reports: Sequence[Report]) -> str:
    """Return workflow commands by which GitHub shows findings beside the lines of code."""
    lines = []
    for finding in (finding for report in reports for finding in report.counted):
        kind = {"error": "error", "warning": "warning", "note": "notice"}[finding.severity]
        site = finding.site
        title = f"title={finding.code}"
        if is_file(site.file):
            file = _property(relative(site.file).replace(os.sep, "/"))
            span = f"line={site.line},endLine={site.end_line}"
            title = f"file={file},{span},col={site.column},{title}"
        text = _data(f"{finding.message}. Instead: {finding.fix}")
        lines.append(f"::{kind} {title}::{text}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
