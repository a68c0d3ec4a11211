"""The record of what was measured for one problem: its key, its values, its form in JSON.

An entry comes from a file that anybody may have written, so the classes accept only well-formed
values: each check raises ValueError, and nothing else, with a message that is safe to print.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args

import jaxlib.version

from voxax.kernels import Parameters, Problem

Verdict = Literal["ok", "rejected", "slow", "failed", "skipped"]
"""``ok``: may be chosen. ``rejected``: wrong results. ``slow``: given up after early rounds,
``seconds`` is what was seen, or never reached, without seconds. ``failed``: did not compile or
run."""

NO_TIME = "no time was left for it"
"""The reason of a ``skipped`` candidate that the time of a run was too short for."""

Source = Literal["measured", "shipped", "predicted"]

PREDICTED = "predicted"
"""What predicted entries are filed under, instead of a jaxlib: the schedules that rank candidates
change with the kernels, and those have revisions."""

MAX_CANDIDATES = 1000
_MAX_NAME = 64
_MAX_TEXT = 500
_MAX_SECONDS = 1e6
_MAX_PARAMETERS = 32
_MAX_INTEGER = 1 << 53  # the largest that every JSON reader keeps exactly
_MAX_SPEC = 200  # characters of a map's relation in a key


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
        _check_text("algorithm", self.algorithm, _MAX_NAME)
        _check_parameters(self.parameters)
        _check_integer("revision", self.revision)
        if self.revision < 0:
            raise ValueError(f"revision {self.revision} is negative")
        _check_choice("verdict", self.verdict, get_args(Verdict))
        if self.seconds is not None:
            _check_seconds("seconds", self.seconds)
            if self.seconds == 0:
                raise ValueError("seconds 0: nothing takes no time")
        elif self.verdict in ("ok", "slow"):
            raise ValueError(f"verdict {self.verdict!r} without seconds")
        if not isinstance(self.reason, str):
            raise ValueError(f"reason {_shown(self.reason)} is not text")
        # Often an error's message: many lines, any characters.
        text = "".join(c if c.isprintable() else " " for c in self.reason[: 4 * _MAX_TEXT])
        object.__setattr__(self, "reason", " ".join(text.split())[:_MAX_TEXT])

    @property
    def candidate(self) -> tuple[str, Parameters, int]:
        """The identity by which a later measurement replaces this one."""
        return self.algorithm, self.parameters, self.revision

    @property
    def reached(self) -> bool:
        """False for a candidate whose turn did not come."""
        return self.verdict != "skipped"

    def __str__(self) -> str:
        return described(self.algorithm, self.parameters)

    def to_json(self) -> dict[str, Any]:
        """For ``json.dumps``; :meth:`from_json` takes it back."""
        return {**vars(self), "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, raw: Any) -> Measured:
        """Raises ValueError, and nothing else, for anything that is not a measurement."""
        values = _fields(cls, raw)
        parameters = values["parameters"]
        if not isinstance(parameters, dict):
            raise ValueError(f"parameters {_shown(parameters)} are not an object")
        return cls(**{**values, "parameters": tuple(sorted(parameters.items()))})


@dataclasses.dataclass(frozen=True)
class Entry:
    """Everything measured for one problem on one device with one jaxlib.

    Attributes:
      measured: the candidates.
      sample: what they ran on: ``"caller's map"``, or an occupancy's name.
      source: measured here, shipped with voxax, or predicted without measuring.
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
            raise ValueError(f"measured {_shown(self.measured)} is not a tuple of measurements")
        if len(self.measured) > MAX_CANDIDATES:
            raise ValueError(f"{len(self.measured)} candidates, at most {MAX_CANDIDATES} are kept")
        _check_text("sample", self.sample, _MAX_TEXT)
        _check_choice("source", self.source, get_args(Source))
        _check_text("when", self.when, _MAX_NAME)
        self.time()
        _check_seconds("seconds_spent", self.seconds_spent)
        _check_text("jaxlib", self.jaxlib, _MAX_NAME)

    @property
    def predicted(self) -> bool:
        """Return whether the times were predicted instead of measured."""
        return self.source == PREDICTED

    @property
    def filed_under(self) -> str:
        """What beside its key an entry is found by: the jaxlib, on which measured times depend."""
        return PREDICTED if self.predicted else self.jaxlib

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
            spent = min(self.seconds_spent + other.seconds_spent, _MAX_SECONDS)
        return dataclasses.replace(other, measured=measured, seconds_spent=spent)

    @property
    def left_out(self) -> tuple[Measured, ...]:
        """The candidates that time was too short for."""
        return tuple(m for m in self.measured if m.verdict == "skipped" and m.reason == NO_TIME)

    def knows(self, candidate: tuple[str, Parameters, int]) -> bool:
        """Return whether there is a record of it: the name, parameters and revision."""
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
        return {**vars(self), "measured": [c.to_json() for c in self.measured]}

    @classmethod
    def from_json(cls, raw: Any) -> Entry:
        """Raises ValueError, and nothing else, for anything that is not an entry."""
        values = _fields(cls, raw)
        measured = values["measured"]
        if not isinstance(measured, list):
            raise ValueError(f"measured {_shown(measured)} is not a list")
        if len(measured) > MAX_CANDIDATES:
            raise ValueError(f"{len(measured)} candidates, at most {MAX_CANDIDATES} are kept")
        return cls(**{**values, "measured": tuple(Measured.from_json(c) for c in measured)})


def _fields(cls: type[Measured] | type[Entry], raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError(f"{_shown(raw)} is not an object")
    expected = {f.name for f in dataclasses.fields(cls)}
    if raw.keys() != expected:
        raise ValueError(f"fields {_shown(sorted(map(str, raw)))}, expected {sorted(expected)}")
    return raw


def described(algorithm: str, parameters: Parameters) -> str:
    """``name(parameter=value, ...)``."""
    values = ", ".join(f"{name}={value}" for name, value in parameters)
    return f"{algorithm}({values})" if values else algorithm


def summary_of(problem: Problem, entry: Entry) -> str:
    """The problem's key, the fastest candidate and the next, on one line."""
    timed = sorted(
        (m.seconds, number, str(m))
        for number, m in enumerate(entry.measured)
        if m.verdict == "ok" and m.seconds is not None
    )
    shown = [f"{what} {1e3 * seconds:.3g} ms" for seconds, _, what in timed]
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
        yield f"{m}: {m.verdict}{time_text} {m.reason}"


def key_of(problem: Problem) -> str:
    """The text that a problem's entry is filed under: everything that may change which algorithm
    is fastest.

    It holds the product, kind, dtype, precision, taps, channels, groups, rows by powers of two, the
    map's relation, and its occupancy: the bucketed pairs per output row of a concrete map, or
    ``traced`` with the level (coarser levels are denser). It is equal in every process. Each device
    has a file of its own, and each entry names the jaxlib and the revisions it was measured with.
    """
    occupancy = (
        f"traced level {'x'.join(map(str, problem.layer.level)) or '?'}"
        if problem.layer.density is None
        else f"pairs/row {problem.layer.density:.3g}"
    )
    relation = "unknown map" if problem.layer.spec is None else str(problem.layer.spec)
    words = (
        f"C{problem.in_channels}-{problem.out_channels}",
        f"G{problem.layer.groups}",
        f"rows {_power(problem.layer.in_capacity)}-{_power(problem.layer.out_capacity)}",
        f"[{relation[:_MAX_SPEC]}]" + (" self-adjoint" if problem.layer.symmetric else ""),
        occupancy,
    )
    return family_of(problem) + " ".join((*words, *_of_grid(problem)))


def _of_grid(problem: Problem) -> tuple[str, ...]:
    """The grid by powers of two, how alike its sizes are, and how many positions have each."""
    if not problem.layer.grid:
        return ()
    words = ["grid " + "x".join(map(_power, problem.layer.grid))]
    if problem.layer.tile_density is not None:
        words.append(f"by tiles {problem.layer.tile_density:.3g}")
    if problem.layer.uniform:
        words.append({"scenes": "one size per scene", "all": "all taps"}[problem.layer.uniform])
    if problem.layer.prefix:
        words.append("prefix " + "-".join(map(str, problem.layer.prefix)))
    return tuple(words)


def family_of(problem: Problem) -> str:
    """The beginning that the keys of similar problems share."""
    words = (problem.product, problem.layer.kind, problem.dtype, problem.layer.precision)
    return " ".join((*words, f"K{problem.layer.num_offsets} "))


def density_bucket(pairs: int, out_rows: int) -> float:
    """Pairs per output row, rounded to a power of sqrt(2); 0 where there are none."""
    if pairs <= 0 or out_rows <= 0:
        return 0.0
    return 2 ** (round(2 * math.log2(pairs / out_rows)) / 2)


def _power(rows: int) -> str:
    return f"2^{max(rows - 1, 0).bit_length()}" if rows else "0"


def _check_parameters(parameters: Any) -> None:
    """Raise ValueError unless this is a sorted tuple of names with integers or text."""
    if not isinstance(parameters, tuple) or len(parameters) > _MAX_PARAMETERS:
        raise ValueError(f"parameters {_shown(parameters)}: not a tuple of <= {_MAX_PARAMETERS}")
    for pair in parameters:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"parameter {_shown(pair)} is not a pair of name and value")
        name, value = pair
        _check_text("a parameter's name", name, _MAX_NAME)
        if isinstance(value, str):
            _check_text(f"parameter {name}", value, _MAX_NAME)
        else:
            _check_integer(f"parameter {name}", value)
    names = [name for name, _ in parameters]
    if names != sorted(set(names)):
        raise ValueError(f"parameters {_shown(names)} are not sorted, or one is there twice")


def _check_text(name: str, value: Any, longest: int) -> None:
    """Raise ValueError unless this is printable text."""
    # Printable: these go to terminals, and a file may come from anywhere.
    if not (isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()):
        raise ValueError(f"{name} {_shown(value)}: not 1 to {longest} printable characters")


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise ValueError unless this is one of ``known``."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} {_shown(value)}: not one of {', '.join(known)}")


def _check_integer(name: str, value: Any) -> None:
    """Raise ValueError unless this is an integer that JSON keeps."""
    if type(value) is not int or abs(value) > _MAX_INTEGER:
        raise ValueError(f"{name} {_shown(value)}: not an integer of at most 2^53")


def _check_seconds(name: str, value: Any) -> None:
    """Raise ValueError unless this is a finite time, 0 or more."""
    number = isinstance(value, float | int) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MAX_SECONDS:  # false for NaN
        raise ValueError(f"{name} {_shown(value)}: not between 0 and {_MAX_SECONDS:g}")


def _shown(value: Any) -> str:
    """A short, printable form of anything, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # integers of thousands of digits; deep nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
