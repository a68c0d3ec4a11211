"""The report as text."""

from __future__ import annotations

from collections.abc import Iterator

from voxax.check.codes import Verdict
from voxax.check.finding import Finding
from voxax.check.report import Report
from voxax.check.source import relative

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def plain(report: Report) -> str:
    """The report without colours."""
    return "\n".join(text for text, _ in _lines(report))


def styled(report: Report) -> Iterator[tuple[str, str]]:
    """Lines of the report, each with a style of ``rich``."""
    yield from _lines(report)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
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
        yield from _finding(finding)
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


def _finding(finding: Finding) -> Iterator[tuple[str, str]]:
    where = f"{relative(finding.file)}:{finding.line}:{finding.column}"
    colour = _COLOURS[finding.severity]
    yield f"{where}: {finding.severity} {finding.code}: {finding.message}", colour
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
    if finding.rewrite is not None:
        for line in finding.rewrite.text.splitlines():
            yield f"    + {line.rstrip()}", "green"
