"""What the tuner decided, and who listens.

What an entry of the cache says about the candidates of a space.

The order in which candidates are tried, since time may not suffice for all.

What measurements of similar problems say about a candidate.

What the tuner tells people: errors and log lines.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Literal

from voxax.algorithms import Algorithm, Parameters, Problem, lookup
from voxax.tuning.cache import TuningCache
from voxax.tuning.entry import Entry, Measured, described, family_of, key_of
from voxax.tuning.space import Candidate, Space

Source = Literal["measured", "cached", "shipped", "predicted", "pinned"]
"""``measured``: just now, on this hardware. ``cached``: by an earlier run. ``shipped``: by us, on
hardware of this kind. ``predicted``: nobody measured it. ``pinned``: there is no other."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One decision.

    Attributes:
      problem: what was decided about.
      algorithm, parameters: what runs.
      source: where the decision comes from.
      seconds: measured time of one call, or None.
      entry: everything measured about this problem, or None.
      refused: ``(name, reason)`` of admitted algorithms that cannot run.
    """

    problem: Problem
    algorithm: str
    parameters: Parameters
    source: Source
    seconds: float | None = None
    entry: Entry | None = None
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def implementation(self) -> Algorithm:
        """The record of the chosen algorithm."""
        return lookup(self.algorithm, self.problem.kind)

    def __str__(self) -> str:
        return described(self.algorithm, self.parameters)


_listeners: contextvars.ContextVar[tuple[list[Choice], ...]]
_listeners = contextvars.ContextVar("voxax_choices", default=())


@contextlib.contextmanager
def record_choices() -> Iterator[list[Choice]]:
    """A list that receives every choice made inside, in this thread.

    A choice is made when a product is lowered: a function that is already compiled makes none.
    """
    heard: list[Choice] = []
    token = _listeners.set((*_listeners.get(), heard))
    try:
        yield heard
    finally:
        _listeners.reset(token)


def announce(choice: Choice) -> Choice:
    """Tell all who listen."""
    for heard in _listeners.get():
        heard.append(choice)
    return choice


def _records(space: Space, entry: Entry) -> list[tuple[Candidate, Measured | None]]:
    """What the entry says about each candidate; others in it are ignored."""
    by_identity = {m.candidate: m for m in entry.measured}
    return [(c, by_identity.get(c.identity)) for c in space.candidates]


def is_complete(space: Space, entry: Entry) -> bool:
    """Whether every candidate had its turn."""
    return all(m is not None and m.reached for _, m in _records(space, entry))


def leaves_unknown(space: Space, entry: Entry) -> bool:
    """Whether something admitted was never considered, or nothing admitted ran to the end."""
    records = _records(space, entry)
    considered = all(m is not None for _, m in records)
    return not considered or not any(m is not None and m.verdict == "ok" for _, m in records)


def fastest(space: Space, entry: Entry) -> tuple[Candidate, float] | None:
    """The fastest that ran to the end; where none did, of those that were given up early.

    A prediction without the heuristic is of other kernels, or of a device with other cores.
    """
    if entry.predicted and not entry.knows(space.heuristics[0].identity):
        return None
    for verdict in ("ok", "slow"):
        timed = [
            (m.seconds, index, candidate)
            for index, (candidate, m) in enumerate(_records(space, entry))
            if m is not None and m.verdict == verdict and m.seconds is not None
        ]
        if timed:
            seconds, _, candidate = min(timed, key=lambda item: item[:2])
            return candidate, seconds
    return None


def likely_first(space: Space, entry: Entry | None) -> list[Candidate]:
    """The candidates in the space's order; where they were predicted, the quick ones first."""
    if entry is None or not entry.predicted:
        return list(space.candidates)
    times = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
    return sorted(space.candidates, key=lambda c: times.get(c.identity, float("inf")))


# So many similar problems, in each of which the candidate took this many times the best.
_ENOUGH, _FACTOR = 3, 2.0

Identity = tuple[str, tuple[tuple[str, int | str], ...], int]


def hopeless(problem: Problem, space: Space, cache: TuningCache) -> dict[Identity, str]:
    """Candidates that need not be tried, with the reason.

    Most of the time that tuning takes is spent on compiling, and most of that on candidates that
    are slow everywhere on this device. Problems are similar that share product, kind of weight,
    dtype, precision and number of taps. Where nothing would be left, nothing is hopeless.
    """
    family, key = family_of(problem), key_of(problem)
    losses: collections.Counter[Identity] = collections.Counter()
    wins: collections.Counter[Identity] = collections.Counter()
    for other, entry in cache.items():
        if other == key or not other.startswith(family) or entry.predicted:
            continue
        timed = {m.candidate: m.seconds for m in entry.measured if m.seconds is not None}
        best = min(timed.values(), default=0.0)
        for candidate, seconds in timed.items():
            (losses if seconds > _FACTOR * best else wins)[candidate] += 1
    found = {
        c.identity: f"at least {_FACTOR:g} times the best in {losses[c.identity]} similar problems"
        for c in space.candidates
        if losses[c.identity] >= _ENOUGH and not wins[c.identity]
    }
    return found if len(found) < len(space.candidates) else {}


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
