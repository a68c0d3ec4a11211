"""``# voxax: ignore[CODE] reason`` in the source."""

from __future__ import annotations

import dataclasses
import functools
import io
import linecache
import re
import tokenize
from collections.abc import Sequence

from voxax.check.finding import Finding
from voxax.check.source import statement_lines

_COMMENT = re.compile(r"#\s*voxax:\s*ignore\[([^\]]*)\]\s*(.*)")


def with_ignores(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that the source ignores marked with the reason given there."""
    return [dataclasses.replace(f, ignored=_reason(f)) for f in findings]


def _reason(finding: Finding) -> str | None:
    comments = _comments(finding.file, tuple(linecache.getlines(finding.file)))
    first, last = statement_lines(finding.site)
    for line in (first - 1, *range(first, last + 1)):
        for codes, reason, alone in comments.get(line, ()):
            if finding.code in codes and (alone or line >= first):
                return reason or "no reason given"
    return None


@functools.lru_cache(maxsize=64)
def _comments(
    file: str, lines: tuple[str, ...]
) -> dict[int, list[tuple[frozenset[str], str, bool]]]:
    del file
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
