"""Count a kernel's cycles in the listing of its final schedule.

libtpu prints a kernel several times while it compiles it. Two of the listings matter:

- ``packed-bundles-post-ra``: the schedule with its last registers, one line a cycle. A line is a
  bundle of instructions that are issued together, or empty: ``{}``, a cycle in which the kernel
  waits for a result of its own.
- ``final_bundles``: the same without most of the empty lines, which became delays that are encoded
  in other bundles and not printed.

So the first is counted. In a plain product of 4096 x 4096 matrices on v5e a fifth of its lines are
empty; the second listing alone would make the product faster than the matrix units can be. The
lines of a third file, ``pre-delay_hlo-static-per-bundle-utilization``, say for each cycle how many
of the core's units are at work.

A loop is what a branch backwards encloses. How often it runs is printed where the number is known
when it is compiled (``scmp.ge ..., 98 /* loop exit test */``); pipelined loops of s stages run s
times more than they have steps, and in those the body is skipped. Every branch forwards is taken to
fall through: each region that a predicate guards is counted as executed.

Not in a listing: waiting for copies, for other cores and for the loads of code.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_LINE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:[ >]*(\{.*)$")
_BRANCH = re.compile(r"sbr\.rel (?:\(!?(\S+)\) )?target bundleno = (\d+)")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder (?:\(\S+\), )?%\w+, (\d+) /\* loop exit test")
_STAGE = re.compile(r"iteration index, stage = (\d+)")
_COPY = re.compile(r"= dma\.(\w+?)_to_(\w+) .*?/\*size_in_granules=\*/(\d+)?")
# Names of the listings in libtpu's flags and files.
SCHEDULE, UTILIZATION = "packed-bundles-post-ra", "pre-delay_hlo-static-per-bundle-utilization"
# Bundles behind a branch that are executed before it takes effect.
_DELAY_SLOTS = 4


def flags(folder: Path) -> str:
    """Return libtpu's flags that write the listings read here into a folder."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex={SCHEDULE}|{UTILIZATION}"
    )


@dataclasses.dataclass(frozen=True)
class Copy:
    """An asynchronous copy that a loop starts once in each pass.

    Attributes:
      source, target: memories, e.g. ``hbm``, ``vmem``.
      granules: None where the size is known at run time only.
    """

    source: str
    target: str
    granules: int | None


@dataclasses.dataclass(frozen=True)
class Loop:
    """A part of a kernel; the whole kernel is the outermost one.

    Attributes:
      depth: loops around it.
      first: number of its first cycle in the listing.
      trips: how often it runs each time it is reached; None where that is known at run time only.
      cycles: of one pass, without inner loops.
      bundles: those of them in which something is issued.
      busy: units at work, summed over these cycles, by kind of unit.
      copies: those that a pass starts.
      inner: loops inside.
    """

    depth: int
    first: int
    trips: int | None
    cycles: int
    bundles: int
    busy: Mapping[str, int]
    copies: tuple[Copy, ...]
    inner: tuple[Loop, ...]

    def total(self, unknown: float = 1) -> Totals:
        """Sum all passes; loops of unknown trips run ``unknown`` times, nested ones once."""
        trips = unknown if self.trips is None else self.trips
        parts = [loop.total(1 if self.trips is None else unknown) for loop in self.inner]
        busy = {k: trips * (v + sum(p.busy[k] for p in parts)) for k, v in self.busy.items()}
        return Totals(
            trips * (self.cycles + sum(p.cycles for p in parts)),
            trips * (self.bundles + sum(p.bundles for p in parts)),
            busy,
            trips * (_from_memory(self.copies) + sum(p.granules for p in parts)),
        )

    def walk(self) -> list[Loop]:
        """Return this loop and all inside, in the listing's order."""
        return [self, *(found for loop in self.inner for found in loop.walk())]


@dataclasses.dataclass(frozen=True)
class Totals:
    """Cycles, bundles, busy units by kind, and granules copied from or to HBM."""

    cycles: float
    bundles: float
    busy: Mapping[str, float]
    granules: float


@dataclasses.dataclass(frozen=True)
class Listing:
    """One kernel.

    Attributes:
      whole: the kernel as a loop of one pass.
      units: how many there are, by kind; ``MXU``, ``VALU`` and so on.
    """

    whole: Loop
    units: Mapping[str, int]

    @property
    def unknown(self) -> tuple[Loop, ...]:
        """Loops whose number of passes is known at run time only."""
        return tuple(loop for loop in self.whole.walk() if loop.trips is None)


def read_listing(schedule: str, utilization: str = "") -> Listing:
    """Read a kernel's listings.

    Args:
      schedule: the text of ``packed-bundles-post-ra``.
      utilization: the text of ``pre-delay_hlo-static-per-bundle-utilization``.

    Raises:
      ValueError: a listing in another form, as other versions of libtpu may print.
    """
    lines = [m[2] for line in schedule.splitlines() if (m := _LINE.match(line))]
    if not lines:
        raise ValueError("no bundle in this listing: its form is unknown")
    units, busy = _utilization(utilization, len(lines))
    spans = []
    for at, line in enumerate(lines):
        for predicate, place in _BRANCH.findall(line):
            target = int(place)
            if target <= at:
                end = min(at + _DELAY_SLOTS + 1, len(lines))
                spans.append((target, end, _trips(lines[target:end], predicate)))
    # Loops that begin together: the longer one is outside.
    spans.sort(key=lambda s: (s[0], -s[1]))
    whole, rest = _nest((0, len(lines), 1), spans, lines, busy, tuple(units), 0)
    if rest:
        raise ValueError(
            f"loops of this listing overlap at bundle {rest[0][0]}: its form is unknown"
        )
    return Listing(whole, units)


def _nest(
    span: tuple[int, int, int | None],
    spans: Sequence[tuple[int, int, int | None]],
    lines: Sequence[str],
    busy: Sequence[Sequence[int]],
    kinds: tuple[str, ...],
    depth: int,
) -> tuple[Loop, Sequence[tuple[int, int, int | None]]]:
    """Return the loop of ``span``, and the spans that begin behind it."""
    begin, end, trips = span
    inner, own = [], set(range(begin, end))
    while spans and spans[0][0] < end:
        inside = spans[0]
        own -= set(range(inside[0], inside[1]))
        if depth and inside[0] >= end - _DELAY_SLOTS:  # behind the branch: it follows this loop
            break
        loop, spans = _nest(inside, spans[1:], lines, busy, kinds, depth + 1)
        inner.append(loop)
    rows = sorted(own)
    loop = Loop(
        depth,
        begin,
        trips,
        len(rows),
        sum(not lines[row].startswith("{}") for row in rows),
        {kind: sum(busy[row][at] for row in rows) for at, kind in enumerate(kinds)},
        tuple(copy for row in rows for copy in _copies(lines[row])),
        tuple(inner),
    )
    return loop, spans


def _trips(lines: Sequence[str], predicate: str) -> int | None:
    """Return the working passes of a loop that the branch under ``predicate`` closes.

    Its exit test is the comparison that the branch depends on, and without one the test closest to
    the loop's end.
    """
    text = "\n".join(lines)
    own = re.search(rf"{re.escape(predicate)} = (scmp.*)", text) if predicate else None
    tests = _EXIT.findall(own[1] if own else text)
    if not tests:
        return None
    stages = [int(stage) for stage in _STAGE.findall(text)]
    return max(int(tests[0 if own else -1]) - max(stages, default=0), 1)


def _copies(line: str) -> list[Copy]:
    return [
        Copy(source, target, int(size) if size else None)
        for source, target, size in _COPY.findall(line)
    ]


def _from_memory(copies: Sequence[Copy]) -> int:
    return sum(c.granules or 0 for c in copies if "hbm" in (c.source, c.target))


def _utilization(text: str, cycles: int) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """Return units by kind, and the number at work in each cycle."""
    if "== UTILIZATION:" not in text:
        return {}, [()] * cycles
    head, body = text.split("== UTILIZATION:")
    kinds, numbers = head.strip().splitlines()[-2:]
    units = dict(zip(kinds.split(", "), map(int, numbers.split()), strict=True))
    rows = [tuple(map(int, line.split())) for line in body.splitlines() if line.strip()]
    if len(rows) != cycles:
        raise ValueError(f"{cycles} bundles, but {len(rows)} lines of utilization")
    return units, rows
