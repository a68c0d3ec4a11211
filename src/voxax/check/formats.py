"""The report for machines: JSON, SARIF 2.1.0, and workflow commands of GitHub."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxax.check.codes import CODES
from voxax.check.finding import Finding
from voxax.check.report import Report
from voxax.check.source import Site, is_file, relative

_LEVELS = {"error": "error", "warning": "warning", "note": "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_json(reports: Sequence[Report]) -> str:
    """Every report with all that its findings say."""
    return json.dumps([_report(report) for report in reports], indent=2)


def _report(report: Report) -> dict[str, Any]:
    verification = report.verification
    return {
        "name": report.name,
        "verdict": str(report.verdict),
        "modules": {path: str(verdict) for path, verdict in report.modules.items()},
        "static_arguments": list(report.static_arguments),
        "programs": report.programs,
        "incomplete": report.incomplete,
        "verification": None if verification is None else verification.as_dict(),
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    rewrite = finding.rewrite
    return {
        "code": finding.code,
        "severity": finding.severity,
        "verdict": str(finding.verdict),
        **_site(finding.site),
        "message": finding.message,
        "excerpt": finding.excerpt(),
        "depends_on": list(finding.depends_on),
        "arguments": list(finding.arguments),
        "why": finding.why,
        "fix": finding.fix,
        "rewrite": rewrite
        and {
            "first_line": rewrite.first_line,
            "last_line": rewrite.last_line,
            "text": rewrite.text,
            "imports": list(rewrite.imports),
        },
        "module": finding.module,
        "callers": [_site(caller) for caller in finding.callers],
        "ignored": finding.ignored,
        "page": finding.about.page,
    }


def _site(site: Site) -> dict[str, Any]:
    return {
        "file": site.file,
        "line": site.line,
        "column": site.column,
        "end_line": site.end_line,
        "end_column": site.end_column,
        "function": site.function,
    }


def as_sarif(reports: Sequence[Report]) -> str:
    """A SARIF log: one run, one result for each finding; ignored ones are suppressed."""
    findings = [finding for report in reports for finding in report.findings]
    used = sorted({finding.code for finding in findings})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code].title},
            "fullDescription": {"text": CODES[code].why},
            "defaultConfiguration": {"level": _LEVELS[CODES[code].severity]},
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
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. Instead: {finding.fix}"},
        "locations": [_location(finding.site)],
    }
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.ignored}]
    return result


def _location(site: Site) -> dict[str, Any]:
    if not is_file(site.file):  # typed in by hand: there is nothing that a viewer could open
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
    """Relative to the working directory, or absolute with its scheme (RFC 3986)."""
    near = relative(file)
    if os.path.isabs(near):
        return Path(near).as_uri()
    return urllib.parse.quote(near.replace(os.sep, "/"))


def as_github(reports: Sequence[Report]) -> str:
    """Workflow commands that put each finding beside its line."""
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
