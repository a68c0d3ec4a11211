"""Records of the tuning cache: the measurements of one problem, the key, and the JSON form.

A problem is one product (forward, dgrad or wgrad) of a layer. Records may come from an untrusted
file, so ``from_json`` accepts only well-formed values. It raises only ValueError, with a message
that is safe to print.
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
"""Result of measuring a candidate. ``ok``: it may be chosen. ``rejected``: it gave wrong results.
``slow``: it was given up after one run. ``failed``: it did not compile or run. ``skipped``: it was
not measured."""

NO_TIME = "no time was left for it"
"""The reason in a measurement of a candidate that was skipped because the time was used up."""

Source = Literal["measured", "shipped", "predicted"]

PREDICTED = "predicted"
"""Word that replaces the version of jaxlib in the key of a predicted entry, since predictions do
not depend on jaxlib. They depend on the kernels, which have revisions."""

MAX_CANDIDATES = 1000
_MAX_NAME = 64
_MAX_REASON = 500
_MAX_SECONDS = 1e6
_MAX_PARAMETERS = 32
_MAX_SPEC = 200  # characters of a map's relation in a key


def jaxlib_version() -> str:
    """Return the version of jaxlib, which contains the compiler that all times depend on."""
    return jaxlib.version.__version__


def utc_now() -> str:
    """Return the current time as ISO text in UTC, for :attr:`Entry.when`."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurement of one candidate, that is, of an algorithm with parameters.

    Attributes:
      algorithm: name of the algorithm, which may no longer exist.
      parameters: ``((name, value), ...)``, sorted by name.
      revision: revision of the algorithm's implementation, 0 or more.
      seconds: time of one execution; None only if the verdict is neither ``ok`` nor ``slow``.
      verdict: result of the measurement, see :data:`Verdict`.
      reason: text that explains a verdict other than ``ok``. The constructor changes it to one
        printable line of at most 500 characters.

    Raises:
      ValueError: the parameters are unsorted, or ``ok`` or ``slow`` comes without seconds.
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
        # This is often the message of an error, with many lines and any characters.
        text = "".join(c if c.isprintable() else " " for c in self.reason[: 4 * _MAX_REASON])
        object.__setattr__(self, "reason", " ".join(text.split())[:_MAX_REASON])

    @property
    def candidate(self) -> tuple[str, Parameters, int]:
        """Algorithm, parameters and revision, which identify the candidate within an entry."""
        return self.algorithm, self.parameters, self.revision

    @property
    def reached(self) -> bool:
        """Whether the candidate was tried, that is, not skipped."""
        return self.verdict != "skipped"

    def __str__(self) -> str:
        return described(self.algorithm, self.parameters)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as values for ``json.dumps``."""
        return {**vars(self), "parameters": dict(self.parameters)}

    @classmethod
    def from_json(cls, raw: Any) -> Measured:
        """Return the measurement that :meth:`to_json` turned into `raw`.

        Raises:
          ValueError: ``raw`` is not a well-formed measurement.
        """
        values = _check_fields(cls, raw)
        return cls(**{**values, "parameters": tuple(sorted(values["parameters"].items()))})


@dataclasses.dataclass(frozen=True)
class Entry:
    """All measurements of one product (forward, dgrad or wgrad) on one device with one jaxlib.

    Attributes:
      measured: one measurement per candidate (algorithm with parameters).
      sample: name of the data that the candidates ran on: ``"caller's map"``, or a recorded scene
        such as ``"lidar"``.
      source: ``measured`` by the user, ``shipped`` with voxax, or only ``predicted``.
      when: time of the newest measurement, ISO format in UTC, see :func:`utc_now`.
      seconds_spent: time spent on these measurements, compilation included.
      jaxlib: version of jaxlib that compiled the candidates.
    """

    measured: tuple[Measured, ...]
    sample: str
    source: Source
    when: str
    seconds_spent: float
    jaxlib: str = dataclasses.field(default_factory=jaxlib_version)

    @property
    def predicted(self) -> bool:
        """Whether the times were predicted instead of measured."""
        return self.source == PREDICTED

    @property
    def filed_under(self) -> str:
        """Second part of the cache's key: the jaxlib version, or ``PREDICTED`` for predictions."""
        return PREDICTED if self.predicted else self.jaxlib

    def time(self) -> datetime.datetime:
        """Return :attr:`when` as a timezone-aware datetime."""
        time = datetime.datetime.fromisoformat(self.when)
        return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)

    def merged(self, other: Entry) -> Entry:
        """Return an entry with the candidates of this entry and of the newer entry `other`.

        If both entries have the same candidate, the measurement in `other` is kept, unless `other`
        skipped the candidate. Merging the same entry again changes nothing. If the entries have
        different versions of jaxlib, their times cannot be compared, and the result is `other`. If
        the versions are equal, but only one entry was measured, the result is that entry.
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
        """The records of candidates that were not measured because the time was used up."""
        return tuple(m for m in self.measured if m.verdict == "skipped" and m.reason == NO_TIME)

    def ranked(self) -> tuple[Measured, ...]:
        """Return the ``ok`` measurements of each algorithm's newest revision, fastest first."""
        newest: dict[str, int] = {}
        for c in self.measured:
            newest[c.algorithm] = max(c.revision, newest.get(c.algorithm, 0))
        good = [c for c in self.measured if c.verdict == "ok" and c.revision == newest[c.algorithm]]
        return tuple(sorted(good, key=lambda c: c.seconds or 0.0))

    def summary(self) -> str:
        """Return a line of text with the two fastest candidates and their times."""
        shown = [f"{m} {1e3 * (m.seconds or 0):.3g} ms" for m in self.ranked()[:2]]
        best, second, *_ = *shown, *("nothing could be measured", "none")[len(shown) :]
        return (
            f"{best}; runner-up {second} ({len(self.measured)} candidates in "
            f"{self.seconds_spent:.1f} s, on {self.sample})"
        )

    def lines(self) -> Iterator[str]:
        """Yield a line of text for each candidate: its verdict, time and reason."""
        for m in self.measured:
            time_text = "" if m.seconds is None else f" {1e3 * m.seconds:.3g} ms"
            yield f"{m}: {m.verdict}{time_text} {m.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as values for ``json.dumps``."""
        return {**vars(self), "measured": [c.to_json() for c in self.measured]}

    @classmethod
    def from_json(cls, raw: Any) -> Entry:
        """Return the entry that :meth:`to_json` turned into `raw`.

        Raises:
          ValueError: ``raw`` is not a well-formed entry.
        """
        values = _check_fields(cls, raw)
        entry = cls(**{**values, "measured": tuple(map(Measured.from_json, values["measured"]))})
        entry.time()
        return entry


def described(algorithm: str, parameters: Parameters) -> str:
    """Return a candidate as text: ``algorithm(parameter=value, ...)``.

    Without parameters, the text is the name of the algorithm.
    """
    values = ", ".join(f"{name}={value}" for name, value in parameters)
    return f"{algorithm}({values})" if values else algorithm


def key_of(problem: Problem) -> str:
    """Return the text that identifies a problem (product of a layer) in the tuning cache.

    The text contains everything that may change which algorithm is fastest, except the device, the
    version of jaxlib and the revisions of the kernels; ``docs/tuning.md`` lists its parts. Numbers
    of rows are rounded up to powers of two. For a dynamic convolution the text also describes the
    grid and the kernel sizes.
    """
    layer = problem.layer
    words = [
        f"C{problem.in_channels}-{problem.out_channels} G{layer.groups}",
        f"rows {_power(layer.in_capacity)}-{_power(layer.out_capacity)}",
        f"[{str(layer.spec)[:_MAX_SPEC]}]" + (" self-adjoint" if layer.symmetric else ""),
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
    """Return the first words of a problem's key, which are equal for similar problems.

    They are the product, the kind of weight, the dtype, the precision and the number of kernel
    offsets.
    """
    words = (problem.product, problem.layer.kind, problem.dtype, problem.layer.precision)
    return " ".join((*words, f"K{problem.layer.num_offsets} "))


def density_bucket(pairs: int, out_rows: int) -> float:
    """Return the neighbors per output row, ``pairs / out_rows``, rounded to a power of sqrt(2).

    The result is 0 if `pairs` or `out_rows` is 0. Maps of similar density get equal results.
    """
    if pairs <= 0 or out_rows <= 0:
        return 0.0
    return 2 ** (round(2 * math.log2(pairs / out_rows)) / 2)


def _power(rows: int) -> str:
    return f"2^{max(rows - 1, 0).bit_length()}" if rows else "0"


def _is_text(value: Any) -> bool:
    # Printable, because the texts of untrusted files are written to terminals.
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
    """Check that `raw`, a value decoded from JSON, is a dict of the fields of `cls`; return `raw`.

    Raises:
      ValueError: a field is missing, unknown or malformed.
    """
    expected = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(raw, dict) or raw.keys() != expected:
        raise ValueError(f"{_shown(raw)}: not an object with the fields {sorted(expected)}")
    for name, value in raw.items():
        is_good, wanted = _CHECKS[name]
        if not is_good(value):
            raise ValueError(f"{name} {_shown(value)}: not {wanted}")
    return raw


def _shown(value: Any) -> str:
    """Return a value as printable text of at most 80 characters, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # integers of thousands of digits; deep nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
