"""The record of what was measured for one problem: its key, its values, its form in JSON.

An entry comes from a file that anybody may have written, so ``from_json`` accepts only well-formed
values: each check raises ValueError, and nothing else, with a message that is safe to print.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import jaxlib.version

from voxax.kernels import Parameters, Problem

Verdict = Literal["ok", "rejected", "slow", "failed", "skipped"]
"""``ok``: may be chosen. ``rejected``: wrong results. ``slow``: given up after early rounds,
``seconds`` is what was seen. ``failed``: did not compile or run. ``skipped``: its turn did not
come."""

NO_TIME = "no time was left for it"
"""The reason of a ``skipped`` candidate that the time of a run was too short for."""

Source = Literal["measured", "shipped", "predicted"]

PREDICTED = "predicted"
"""What predicted entries are filed under, instead of a jaxlib: the schedules that rank candidates
change with the kernels, and those have revisions."""

MAX_CANDIDATES = 1000
_MAX_NAME = 64
_MAX_REASON = 500
_MAX_SECONDS = 1e6
_MAX_PARAMETERS = 32
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
      seconds: of one execution; always known if the verdict is ``ok`` or ``slow``.
      verdict: see :data:`Verdict`.
      reason: of a verdict other than ``ok``, for people; made one printable line of at most
        500 characters.

    Raises:
      ValueError: unsorted parameters, or no seconds where they are always known.
    """

    algorithm: str
    parameters: Parameters
    revision: int
    seconds: float | None
    verdict: Verdict
    reason: str = ""

    def __post_init__(self) -> None:
        if list(self.parameters) != sorted(self.parameters, key=lambda pair: pair[0]):
            raise ValueError(f"parameters {self.parameters} of {self.algorithm} are not sorted")
        if self.seconds is None and self.verdict in ("ok", "slow"):
            raise ValueError(f"verdict {self.verdict!r} without seconds")
        # Often an error's message: many lines, any characters.
        text = "".join(c if c.isprintable() else " " for c in self.reason[: 4 * _MAX_REASON])
        object.__setattr__(self, "reason", " ".join(text.split())[:_MAX_REASON])

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
        """The values for ``json.dumps``."""
        return {**vars(self), "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, raw: Any) -> Measured:
        """The inverse; ValueError, and nothing else, for anything that is not a measurement."""
        values = _check_fields(cls, raw)
        return cls(**{**values, "parameters": tuple(sorted(values["parameters"].items()))})


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
    """

    measured: tuple[Measured, ...]
    sample: str
    source: Source
    when: str
    seconds_spent: float
    jaxlib: str = dataclasses.field(default_factory=jaxlib_version)

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
        if other.jaxlib != self.jaxlib or (self.predicted and not other.predicted):
            return other
        if other.predicted and not self.predicted:
            return self
        known = {c.candidate for c in self.measured}
        told = tuple(c for c in other.measured if c.reached or c.candidate not in known)
        if set(told) <= set(self.measured):
            spent = self.seconds_spent
            return dataclasses.replace(other, measured=self.measured, seconds_spent=spent)
        newer = {c.candidate for c in told}
        kept = tuple(c for c in self.measured if c.candidate not in newer)
        spent = other.seconds_spent + (self.seconds_spent if kept else 0)
        measured, spent = (*kept, *told)[-MAX_CANDIDATES:], min(spent, _MAX_SECONDS)
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

    def summary(self) -> str:
        """The fastest candidate and the next, on one line."""
        shown = [f"{m} {1e3 * (m.seconds or 0):.3g} ms" for m in self.ranked()[:2]]
        best, second, *_ = *shown, *("nothing could be measured", "none")[len(shown) :]
        return (
            f"{best}; runner-up {second} ({len(self.measured)} candidates in "
            f"{self.seconds_spent:.1f} s, on {self.sample})"
        )

    def lines(self) -> Iterator[str]:
        """A line for each candidate."""
        for m in self.measured:
            time_text = "" if m.seconds is None else f" {1e3 * m.seconds:.3g} ms"
            yield f"{m}: {m.verdict}{time_text} {m.reason}"

    def to_json(self) -> dict[str, Any]:
        """The values for ``json.dumps``."""
        return {**vars(self), "measured": [c.to_json() for c in self.measured]}

    @classmethod
    def from_json(cls, raw: Any) -> Entry:
        """The inverse; ValueError, and nothing else, for anything that is not an entry."""
        values = _check_fields(cls, raw)
        entry = cls(**{**values, "measured": tuple(map(Measured.from_json, values["measured"]))})
        entry.time()
        return entry


def described(algorithm: str, parameters: Parameters) -> str:
    """``name(parameter=value, ...)``."""
    values = ", ".join(f"{name}={value}" for name, value in parameters)
    return f"{algorithm}({values})" if values else algorithm


def key_of(problem: Problem) -> str:
    """The text that a problem's entry is filed under: everything that may change which algorithm
    is fastest, but for the device, the jaxlib and the revisions; equal in every process.

    ``docs/tuning.md`` lists what it holds. For a product on a grid it also holds the grid by powers
    of two, how alike its sizes are, and how many positions have each.
    """
    layer = problem.layer
    relation = "unknown map" if layer.spec is None else str(layer.spec)[:_MAX_SPEC]
    words = [
        f"C{problem.in_channels}-{problem.out_channels} G{layer.groups}",
        f"rows {_power(layer.in_capacity)}-{_power(layer.out_capacity)}",
        f"[{relation}]" + (" self-adjoint" if layer.symmetric else ""),
        f"traced level {'x'.join(map(str, layer.level)) or '?'}"
        if layer.density is None
        else f"pairs/row {layer.density:.3g}",
    ]
    if layer.sizes.grid:
        words.append("grid " + "x".join(map(_power, layer.sizes.grid)))
        if layer.sizes.tile_density is not None:
            words.append(f"by tiles {layer.sizes.tile_density:.3g}")
        if layer.sizes.uniform:
            words.append({"scenes": "one size per scene", "all": "all taps"}[layer.sizes.uniform])
        if layer.sizes.prefix:
            words.append("prefix " + "-".join(map(str, layer.sizes.prefix)))
    return family_of(problem) + " ".join(words)


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


def _is_text(value: Any) -> bool:
    # Printable: these go to terminals, and a file may come from anywhere.
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= 1 << 53  # which every JSON reader keeps exactly


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, float | int) and not isinstance(value, bool)
    return number and 0 <= value <= _MAX_SECONDS  # false for NaN


def _are_parameters(value: Any) -> bool:
    named = isinstance(value, dict) and len(value) <= _MAX_PARAMETERS and all(map(_is_text, value))
    return named and all(_is_text(v) or _is_integer(v) for v in value.values())


_VERDICTS, _SOURCES = get_args(Verdict), get_args(Source)
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("algorithm", "sample", "when", "jaxlib"),
        (_is_text, f"1 to {_MAX_NAME} printable characters"),
    ),
    "parameters": (_are_parameters, f"at most {_MAX_PARAMETERS} names with integers or text"),
    "revision": (lambda v: _is_integer(v) and v >= 0, "an integer from 0 to 2^53"),
    "seconds": (
        lambda v: v is None or (_is_seconds(v) and v != 0),
        f"more than 0 and at most {_MAX_SECONDS:g}",
    ),
    "seconds_spent": (_is_seconds, f"between 0 and {_MAX_SECONDS:g}"),
    "verdict": (lambda v: v in _VERDICTS, f"one of {', '.join(_VERDICTS)}"),
    "source": (lambda v: v in _SOURCES, f"one of {', '.join(_SOURCES)}"),
    "reason": (lambda v: isinstance(v, str), "text"),
    "measured": (
        lambda v: isinstance(v, list) and len(v) <= MAX_CANDIDATES,
        f"a list of at most {MAX_CANDIDATES} candidates",
    ),
}


def _check_fields(cls: type[Measured] | type[Entry], raw: Any) -> dict[str, Any]:
    """The fields of a record from JSON; ValueError unless all are there and well-formed."""
    expected = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(raw, dict) or raw.keys() != expected:
        raise ValueError(f"{_shown(raw)}: not an object with the fields {sorted(expected)}")
    for name, value in raw.items():
        is_good, wanted = _CHECKS[name]
        if not is_good(value):
            raise ValueError(f"{name} {_shown(value)}: not {wanted}")
    return raw


def _shown(value: Any) -> str:
    """A short, printable form of anything, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # integers of thousands of digits; deep nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
