"""What was measured for one problem, and its form in JSON.

The classes hold only well-formed values: what they refuse, no file can bring in.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

import jaxlib.version

from voxax.tuning.checks import (
    MAX_NAME,
    MAX_SECONDS,
    MAX_TEXT,
    check_choice,
    check_integer,
    check_parameters,
    check_seconds,
    check_text,
    one_line,
    shown,
)

if TYPE_CHECKING:
    from voxax.algorithms.base import Parameters

Verdict = Literal["ok", "rejected", "slow", "failed", "skipped"]
"""``ok``: may be chosen. ``rejected``: wrong results. ``slow``: given up after early rounds,
``seconds`` is what was seen, or never reached, without seconds. ``failed``: did not compile or
run."""

Source = Literal["measured", "shipped", "predicted"]

MAX_CANDIDATES = 1000


def jaxlib_version() -> str:
    """The version of the compiler, on which every time depends."""
    return jaxlib.version.__version__


def utc_now() -> str:
    """The time for :attr:`Entry.when`."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclasses.dataclass(frozen=True)
class Measured:
    """One candidate: an algorithm with parameters, and how it did.

    Attributes:
      algorithm: its name; not necessarily one of today's.
      parameters: ``((name, value), ...)``, sorted by name.
      revision: of the algorithm's implementation, at least 0.
      seconds: of one execution; always known if the verdict is ``ok``.
      verdict: see :data:`Verdict`.
      reason: of a verdict other than ``ok``, for people; made one printable line of at most
        500 characters.

    Raises:
      ValueError: a value of a wrong type or out of range.
    """

    algorithm: str
    parameters: Parameters
    revision: int
    seconds: float | None
    verdict: Verdict
    reason: str = ""

    def __post_init__(self) -> None:
        check_text("algorithm", self.algorithm, MAX_NAME)
        check_parameters(self.parameters)
        check_integer("revision", self.revision)
        if self.revision < 0:
            raise ValueError(f"revision {self.revision} is negative")
        check_choice("verdict", self.verdict, get_args(Verdict))
        if self.seconds is not None:
            check_seconds("seconds", self.seconds)
            if self.seconds == 0:
                raise ValueError("seconds 0: nothing takes no time")
        elif self.verdict in ("ok", "slow"):
            raise ValueError(f"verdict {self.verdict!r} without seconds")
        if not isinstance(self.reason, str):
            raise ValueError(f"reason {shown(self.reason)} is not text")
        # Often an error's message: many lines, any characters.
        object.__setattr__(self, "reason", one_line(self.reason))

    @property
    def candidate(self) -> tuple[str, Parameters, int]:
        """What a later measurement of the same thing replaces."""
        return self.algorithm, self.parameters, self.revision

    @property
    def reached(self) -> bool:
        """False for a candidate whose turn did not come."""
        return self.verdict != "skipped"

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``; :meth:`from_json` takes it back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**values, "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, raw: Any) -> Measured:
        """Raises ValueError, and nothing else, for anything that is not a measurement."""
        values = _fields(cls, raw)
        parameters = values["parameters"]
        if not isinstance(parameters, dict):
            raise ValueError(f"parameters {shown(parameters)} are not an object")
        return cls(**{**values, "parameters": tuple(sorted(parameters.items()))})


@dataclasses.dataclass(frozen=True)
class Entry:
    """Everything measured for one problem on one device with one jaxlib.

    Attributes:
      measured: the candidates.
      sample: what they ran on: ``"caller's map"``, or an occupancy's name.
      source: measured here, shipped with voxax, or predicted: times that nobody measured.
      when: ISO time in UTC, see :func:`utc_now`.
      seconds_spent: on measuring what is here, compilation included.
      jaxlib: version that the candidates were compiled with.

    Raises:
      ValueError: a value of a wrong type or out of range.
    """

    measured: tuple[Measured, ...]
    sample: str
    source: Source
    when: str
    seconds_spent: float
    jaxlib: str = dataclasses.field(default_factory=jaxlib_version)

    def __post_init__(self) -> None:
        if not isinstance(self.measured, tuple) or not all(
            isinstance(candidate, Measured) for candidate in self.measured
        ):
            raise ValueError(f"measured {shown(self.measured)} is not a tuple of measurements")
        if len(self.measured) > MAX_CANDIDATES:
            raise ValueError(f"{len(self.measured)} candidates, at most {MAX_CANDIDATES} are kept")
        check_text("sample", self.sample, MAX_TEXT)
        check_choice("source", self.source, get_args(Source))
        check_text("when", self.when, MAX_NAME)
        self.time()
        check_seconds("seconds_spent", self.seconds_spent)
        check_text("jaxlib", self.jaxlib, MAX_NAME)

    @property
    def predicted(self) -> bool:
        """Whether nobody measured the times."""
        return self.source == "predicted"

    def time(self) -> datetime.datetime:
        """:attr:`when`, to compare."""
        time = datetime.datetime.fromisoformat(self.when)
        return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)

    def merged(self, other: Entry) -> Entry:
        """The candidates of both; ``other``, the newer, is right where both have one.

        Only a candidate that ``other`` did not reach stays as it was. Merging again what is in
        already changes nothing. Times of another jaxlib do not compare: then the result is
        ``other``. Nor do predicted and measured ones: those that were measured stay.
        """
        if other.jaxlib != self.jaxlib:
            return other
        if self.predicted != other.predicted:
            return self if other.predicted else other
        known = {c.candidate for c in self.measured}
        told = tuple(c for c in other.measured if c.reached or c.candidate not in known)
        newer = {c.candidate for c in told}
        kept = tuple(c for c in self.measured if c.candidate not in newer)
        mine, theirs = set(self.measured), set(told)
        measured = self.measured if theirs <= mine else (*kept, *told)[-MAX_CANDIDATES:]
        if mine == theirs:
            spent = max(self.seconds_spent, other.seconds_spent)
        elif theirs <= mine:
            spent = self.seconds_spent
        elif not kept:
            spent = other.seconds_spent
        else:
            spent = min(self.seconds_spent + other.seconds_spent, MAX_SECONDS)
        return dataclasses.replace(other, measured=measured, seconds_spent=spent)

    def knows(self, candidate: tuple[str, Parameters, int]) -> bool:
        """Whether there is a record of it: the name, parameters and revision."""
        return any(m.candidate == candidate for m in self.measured)

    def ranked(self) -> tuple[Measured, ...]:
        """The candidates that may be chosen, quickest first; newest revisions only."""
        newest: dict[str, int] = {}
        for c in self.measured:
            newest[c.algorithm] = max(c.revision, newest.get(c.algorithm, 0))
        good = [c for c in self.measured if c.verdict == "ok" and c.revision == newest[c.algorithm]]
        return tuple(sorted(good, key=lambda c: c.seconds or 0.0))

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``; :meth:`from_json` takes it back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**values, "measured": [c.to_json() for c in self.measured]}

    @classmethod
    def from_json(cls, raw: Any) -> Entry:
        """Raises ValueError, and nothing else, for anything that is not an entry."""
        values = _fields(cls, raw)
        measured = values["measured"]
        if not isinstance(measured, list):
            raise ValueError(f"measured {shown(measured)} is not a list")
        if len(measured) > MAX_CANDIDATES:
            raise ValueError(f"{len(measured)} candidates, at most {MAX_CANDIDATES} are kept")
        return cls(**{**values, "measured": tuple(Measured.from_json(c) for c in measured)})


def _fields(cls: type[Measured] | type[Entry], raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{shown(raw)} is not an object")
    expected = {f.name for f in dataclasses.fields(cls)}
    if raw.keys() != expected:
        raise ValueError(f"fields {shown(sorted(map(str, raw)))}, expected {sorted(expected)}")
    return raw
