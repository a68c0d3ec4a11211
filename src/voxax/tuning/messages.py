"""What the tuner tells people: errors and log lines."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

from voxax.algorithms import Problem
from voxax.tuning.choice import described
from voxax.tuning.entry import Entry
from voxax.tuning.key import key_of
from voxax.tuning.space import Space

_LOG = logging.getLogger("voxax.tuning")


def nothing_left(problem: Problem, space: Space, entry: Entry | None) -> str:
    """The message of an error: every reason why nothing admitted can run."""
    reasons = [f"{name}: {reason}" for name, reason in space.refused]
    for measured in () if entry is None else entry.measured:
        if measured.verdict in ("failed", "rejected"):
            what = described(measured.algorithm, measured.parameters)
            reasons.append(f"{what}: {measured.verdict}, {measured.reason}")
    return f"no admitted algorithm runs {problem.product} on {problem.platform}: " + (
        "; ".join(reasons) or "none was measured"
    )


def log_result(problem: Problem, entry: Entry) -> None:
    """One line for a tuned problem; at level DEBUG one more for each candidate."""
    _LOG.info("tuned %s", summary_of(problem, entry))
    for line in candidates_of(entry):
        _LOG.debug("  %s", line)


def summary_of(problem: Problem, entry: Entry) -> str:
    """The problem, the fastest candidate and the next."""
    timed = sorted(
        (m for m in entry.measured if m.verdict == "ok" and m.seconds is not None),
        key=lambda m: m.seconds or 0.0,
    )
    shown = [
        f"{described(m.algorithm, m.parameters)} {1e3 * (m.seconds or 0):.3g} ms" for m in timed
    ]
    best = shown[0] if shown else "nothing could be measured"
    second = shown[1] if len(shown) > 1 else "none"
    return (
        f"{key_of(problem)}: {best}; runner-up {second} ({len(entry.measured)} candidates in "
        f"{entry.seconds_spent:.1f} s, on {entry.sample})"
    )


def candidates_of(entry: Entry) -> Iterator[str]:
    """A line for each candidate."""
    for m in entry.measured:
        time_text = "" if m.seconds is None else f" {1e3 * m.seconds:.3g} ms"
        what = described(m.algorithm, m.parameters)
        yield f"{what}: {m.verdict}{time_text} {m.reason}"


@functools.lru_cache(maxsize=256)
def log_refusal(name: str, reason: str) -> None:
    """Once per reason."""
    _LOG.info("%s is skipped: %s", name, reason)


@functools.lru_cache(maxsize=256)
def log_failure(key: str, error: str) -> None:
    """Once for each problem and error."""
    _LOG.warning("%s could not be measured, and its default is used: %s", key, error)
