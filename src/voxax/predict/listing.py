"""Count a kernel's cycles in the listing (text) of its final schedule, which libtpu writes.

libtpu prints a kernel several times while it compiles it. Two of the listings matter:

- ``packed-bundles-post-ra``: the schedule after register allocation, one line per cycle. A line is
  a bundle of instructions that are issued together, or an empty bundle ``{}``: a cycle in which the
  kernel waits for one of its own results.
- ``final_bundles``: the same schedule without most of the empty bundles. They became delays, which
  are encoded in other bundles and not printed.

This module counts the lines of the first listing. In a plain product of 4096 x 4096 matrices on
v5e, a fifth of these lines are empty. By the second listing the product would be faster than the
matrix units can be. A third file, ``pre-delay_hlo-static-per-bundle-utilization``, has the number
of units at work in each cycle.

Equal kernels of a program are compiled once. A file, ``deduplication-map``, names the kernels that
share a listing.

A *loop* is the code that a backward branch encloses. A *region* is the code that a forward branch
may skip. A *pass* is one iteration of a loop. How often loops and regions run, and how often a copy
under a predicate starts, follows from the scalars that the listing computes
(:mod:`voxax.predict.scalars`). A loop whose end is a number from memory has ``trips=None``; the
caller gives its number of passes. Regions and copies of unknown predicate count in every pass.

A listing does not contain waits for copies, for other cores and for loads of code.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from voxax.predict.scalars import Scalars

_LINE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:[ >]*(\{.*)$")
_BRANCH = re.compile(r"sbr\.rel (?:\((!?)(\S+)\) )?target bundleno = (\d+)")
# The counter of a loop: the test whether it reached its end, its step, and its start.
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder (?:\(\S+\), )?(%\w+), (\S+)$")
_STEP = re.compile(r"sadd\.s32 (?:\(\S+\), )?(\d+), (%\w+)$")
_PHI = re.compile(r"sphi (%\w+), (%\w+)$")
_EXIT_NOTE = "loop exit test"
_COPY = re.compile(
    r"(?:\{|;;)\s+%\w+ = dma\.(\w+?)_to_(\w+) (?:\[thread:\S+\]\s+)?(?:\((!?)(%\w+)\), )?"
    r".*?/\*size_in_granules=\*/(\d+)?.*?/\*dst_syncflagno=\*/([^\s,}]+)"
)
_WAIT = re.compile(r"(?:\{|;;)\s+%\w+ = dma\.done\.wait (?:\((!?)(%\w+)\), )?([^\s,}]+)")
# Names of the listings in libtpu's flags and files.
SCHEDULE, UTILIZATION = "packed-bundles-post-ra", "pre-delay_hlo-static-per-bundle-utilization"
EQUAL = "deduplication-map"
# Largest number of passes that are evaluated, of a loop with known or unknown end. Later passes are
# assumed to be alike. In a loop with unknown end, events in at most _EDGE of the evaluated passes
# are assumed to happen in the first passes only.
_EVALUATED, _EVALUATED_OPEN, _EDGE = 2048, 64, 2


def flags(folder: Path) -> str:
    """Return the libtpu flags that make the compiler write the kernels' listings to a folder."""
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        f"--xla_jf_dump_llo_pass_label_regex={SCHEDULE}|{UTILIZATION}|{EQUAL}"
    )


def read_equal(text: str) -> dict[str, str]:
    """Return a dict from each kernel without a listing to the equal kernel that has one.

    ``text`` is the content of the file ``deduplication-map``. Kernels are given by name.
    """
    found = {}
    for part in text.split("key:")[1:]:
        name, *rest = part.split()
        found |= {equal: name for equal in rest if not equal.startswith(("ordinal:", "equivalent"))}
    return found


@dataclasses.dataclass(frozen=True)
class Copy:
    """An asynchronous copy between memories that a loop of a TPU kernel starts.

    Attributes:
      source, target: names of the memories, e.g. ``hbm`` and ``vmem``.
      granules: size in granules, a hardware unit of bytes. None if it is known only at run time.
      runs: number of starts of the copy in all passes (iterations) of the loop; None if every pass
        starts it.
      ahead: number of passes from the start of the copy to the wait for its end; 0 if the same pass
        starts it and waits.
    """

    source: str
    target: str
    granules: int | None
    runs: float | None = None
    ahead: int = 1

    @property
    def of_memory(self) -> bool:
        """True for a copy from or to HBM."""
        return "hbm" in (self.source, self.target)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop, or a skippable region, of a TPU kernel's schedule. The outermost is the whole kernel.

    Attributes:
      depth: number of loops and regions around this one.
      first: number of the first cycle in the compiler's listing.
      trips: mean number of passes (iterations) each time the loop is reached. None if known only at
        run time.
      cycles: cycles of one pass, without inner loops.
      bundles: number of these cycles in which an instruction is issued.
      busy: dict from kind of unit to the number of units at work, summed over these cycles.
      copies: copies that a pass starts, also in its regions.
      inner: loops and regions inside.
      waits: how often a pass waits for copies that it started itself.
      runs: how often this loop is reached in all passes of the enclosing loop. None if every pass
        reaches it.
    """

    depth: int
    first: int
    trips: float | None
    cycles: int
    bundles: int
    busy: Mapping[str, int]
    copies: tuple[Copy, ...]
    inner: tuple[Loop, ...]
    waits: int = 0
    runs: float | None = None

    def total(self, passes: float | None = None) -> Totals:
        """Sum the cycles, bundles and busy units of all passes, including inner loops.

        Args:
          passes: number of passes of each loop whose ``trips`` is None. If ``passes`` is None, such
            a loop counts as one pass, and the sum is not complete. The same always holds for such a
            loop inside another such loop.
        """
        trips, complete = self.trips, True
        if trips is None:
            trips, complete = (1, False) if passes is None else (passes, True)
        within = None if self.trips is None else passes
        parts = [
            (trips if loop.runs is None else min(loop.runs, trips), loop.total(within))
            for loop in self.inner
        ]
        return Totals(
            trips * self.cycles + sum(times * part.cycles for times, part in parts),
            trips * self.bundles + sum(times * part.bundles for times, part in parts),
            {
                kind: trips * count + sum(times * part.busy[kind] for times, part in parts)
                for kind, count in self.busy.items()
            },
            complete and all(part.complete for _, part in parts),
        )

    def walk(self) -> list[Loop]:
        """Return this loop and all loops and regions inside, in the order of the listing."""
        return [self, *(found for loop in self.inner for found in loop.walk())]


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over all passes of a loop, see :meth:`Loop.total` and the attributes of :class:`Loop`.

    ``complete`` is False if some number of passes is unknown, so that one pass was counted.
    """

    cycles: float
    bundles: float
    busy: Mapping[str, float]
    complete: bool


@dataclasses.dataclass(frozen=True)
class Listing:
    """The compiler's schedule of one TPU kernel.

    Attributes:
      whole: the kernel as a loop of one pass.
      units: number of units of each kind, ``MXU``, ``VALU`` and so on.
    """

    whole: Loop
    units: Mapping[str, int]

    @property
    def unknown(self) -> tuple[Loop, ...]:
        """The loops whose number of passes is known only at run time."""
        return tuple(loop for loop in self.whole.walk() if loop.trips is None)


def read_listing(schedule: str, utilization: str = "", delay_slots: int = 4) -> Listing:
    """Parse the compiler's text files of one kernel, and return the schedule.

    Args:
      schedule: the text of ``packed-bundles-post-ra``.
      utilization: the text of ``pre-delay_hlo-static-per-bundle-utilization``.
      delay_slots: number of instruction bundles after a branch that run before it takes effect.

    Raises:
      ValueError: the listing has an unknown form, as other versions of libtpu may print.
    """
    lines = [m[2] for line in schedule.splitlines() if (m := _LINE.match(line))]
    if not lines:
        raise ValueError("no bundle in this listing: its form is unknown")
    units, busy = _utilization(utilization, len(lines))
    reader = _Reader(lines, busy, tuple(units))
    return Listing(reader.loop(_nest(lines, delay_slots), {}, 0), units)


@dataclasses.dataclass
class _Span:
    """A loop or region of a listing: its rows from ``begin`` up to, but not including, ``end``.

    The branch instruction in row ``branch`` jumps to the begin of the loop, or over the region, if
    ``predicate`` is true (false if ``negated``). An empty predicate is always true. ``inner`` has
    the loops and regions directly inside.
    """

    begin: int
    end: int
    branch: int
    predicate: str = ""
    negated: bool = False
    inner: list[_Span] = dataclasses.field(default_factory=list)

    @property
    def is_loop(self) -> bool:
        return self.branch >= self.begin


def _nest(lines: Sequence[str], delay_slots: int = 4) -> _Span:
    """Find the loops and regions in the lines of a listing; return a span of the whole listing.

    A region is a range of lines that a branch can skip. The attribute ``inner`` of each span has
    the loops and regions directly inside it. For `delay_slots` see :func:`read_listing`.

    Raises:
      ValueError: two loops overlap.
    """
    loops, regions = [], []
    for row, line in enumerate(lines):
        behind = min(row + delay_slots + 1, len(lines))
        for negated, predicate, place in _BRANCH.findall(line):
            target, more = int(place), (row, predicate, bool(negated))
            if target <= row:
                loops.append(_Span(target, behind, *more))
            elif behind < target:
                regions.append(_Span(behind, target, *more))
    spans = loops + [region for region in regions if all(_fit(region, loop) for loop in loops)]
    # If spans begin in the same row, the longer span is outside. Of equal spans, the region is.
    spans.sort(key=lambda span: (span.begin, -span.end, span.is_loop))
    whole = _Span(0, len(lines), -1)
    around = [whole]
    for span in spans:
        # A span that begins in the delay slots of a loop's branch follows that loop. Its rows must
        # not count twice.
        while span.begin >= around[-1].end - delay_slots * around[-1].is_loop:
            done = around.pop()
            done.end = min(done.end, span.begin)
        if span.end > around[-1].end:
            if span.is_loop:
                raise ValueError(f"loops of this listing overlap at bundle {span.begin}")
            continue
        around[-1].inner.append(span)
        around.append(span)
    return whole


def _fit(region: _Span, loop: _Span) -> bool:
    """Return whether a region and a loop are compatible: nested in each other, or disjoint.

    If the region contains the loop, but ends in the delay slots of the loop's branch, the region's
    ``end`` is moved to the end of the loop.
    """
    closed = loop.branch + 1
    if region.begin <= loop.begin and closed <= region.end:
        region.end = max(region.end, loop.end)  # The slots behind a branch belong to its loop.
        return True
    inside = loop.begin <= region.begin and region.end <= loop.end
    return inside or region.end <= loop.begin or closed <= region.begin


@dataclasses.dataclass
class _Passes:
    """What happened in the evaluated passes (iterations) of a loop.

    An inner span is a loop or region inside the loop. A flag identifies the synchronization flag
    that a copy sets when it ends.

    Attributes:
      number: number of passes evaluated so far.
      runs: how often each inner span is reached, by the row of the span's branch.
      trips: passes of each inner loop, by the row of the loop's branch: one number for each time
        that the loop is reached.
      known: values of scalars when an inner span is first reached, by the row of its branch.
      started: copies that were started, as ``(pass, row, index in the row, flag)``.
      waited: waits for copies, as ``(pass, row, flag)``.
    """

    number: int = 0
    runs: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    trips: dict[int, list[float | None]] = dataclasses.field(default_factory=dict)
    known: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    started: list[tuple[int, int, int, Any]] = dataclasses.field(default_factory=list)
    waited: list[tuple[int, int, Any]] = dataclasses.field(default_factory=list)


class _Reader:
    def __init__(
        self, lines: Sequence[str], busy: Sequence[Sequence[int]], kinds: tuple[str, ...]
    ) -> None:
        self._lines, self._busy, self._kinds = lines, busy, kinds
        self._scalars = Scalars(lines)
        self._copies = {
            row: found for row, line in enumerate(lines) if (found := _COPY.findall(line))
        }
        self._waits = {
            row: found for row, line in enumerate(lines) if (found := _WAIT.findall(line))
        }

    def loop(self, span: _Span, known: dict[str, Any], depth: int) -> Loop:
        """Return the :class:`Loop` for a span, which is a loop or the whole kernel.

        Args:
          span: the rows of the loop.
          known: values of scalars from outside of the loop, by name.
          depth: number of loops and regions around it.
        """
        found = _Passes()
        trips: float | None = 1
        passes: Iterable[dict[str, Any]] = [known]
        if span.is_loop:
            trips = self._trips(span, known)
            most = _EVALUATED_OPEN if trips is None else min(math.ceil(trips), _EVALUATED)
            passes = self._scalars.passes(span.begin, span.end, known, most)
        endless, self._scalars.endless = self._scalars.endless, trips is None
        for values in passes:
            self._pass(span, values, found)
            found.number += 1
        self._scalars.endless = endless
        return self._built(span, trips, found, depth)

    def _pass(self, span: _Span, known: dict[str, Any], found: _Passes) -> None:
        """Evaluate one pass of a loop, or of a region in the loop; add its events to ``found``.

        ``known`` has the values of scalars in this pass, by name.
        """
        for row in _own(span):
            for which, (*_, negated, predicate, _, flag) in enumerate(self._copies.get(row, ())):
                if self._holds(predicate, bool(negated), known):
                    value = self._flag(flag, known)
                    found.started.append((found.number, row, which, value))
            for negated, predicate, flag in self._waits.get(row, ()):
                # If it is unknown whether a pass waits, assume that it does not.
                if not predicate or self._scalars.value(predicate, known) is (not negated):
                    found.waited.append((found.number, row, self._flag(flag, known)))
        for inner in span.inner:
            if inner.is_loop:
                found.trips.setdefault(inner.branch, []).append(self._trips(inner, known))
            elif inner.predicate and not self._holds(inner.predicate, not inner.negated, known):
                continue
            found.runs[inner.branch] += 1
            found.known.setdefault(inner.branch, known)
            if not inner.is_loop:
                self._pass(inner, known, found)

    def _holds(self, predicate: str, negated: bool, known: dict[str, Any]) -> bool:
        """Return False if a predicate is known to be false, and otherwise True.

        With ``negated``, return False if it is known to be true. An empty predicate is always true.
        ``known`` has the known values of scalars, by name.
        """
        return not predicate or self._scalars.value(predicate, known) is not negated

    def _flag(self, flag: str, known: dict[str, Any]) -> Any:
        value = self._scalars.value(flag, known)
        return flag if value is None else value

    def _trips(self, span: _Span, known: dict[str, Any]) -> float | None:
        """Return the number of passes of the loop ``span``, from its counter; None if unknown.

        ``known`` has the values of scalars where the loop is reached, by name.
        """
        scalars = self._scalars
        test = _EXIT.match(scalars.text(span.predicate))
        bound = scalars.value(test[2], dict(known)) if test and span.negated else None
        if test is None or type(bound) is not int:
            return None
        counter = scalars.origin(test[1])
        step = _STEP.match(scalars.text(counter))
        phi = _PHI.match(scalars.text(scalars.origin(step[2]))) if step else None
        own = phi is not None and scalars.origin(phi[2]) == counter
        start = scalars.value(phi[1], dict(known)) if phi and own else None
        if step and type(start) is int:
            return max(-(-(bound - start) // int(step[1])), 1)
        return max(bound, 1) if scalars.is_noted(span.predicate, _EXIT_NOTE) else None

    def _built(self, span: _Span, trips: float | None, found: _Passes, depth: int) -> Loop:
        rows, parts = self._parts(span, trips, found)
        inner = []
        for part in parts:
            runs = self._runs(found.runs[part.branch], trips, found.number)
            known = found.known.get(part.branch)
            if part.is_loop and known is not None:
                each = found.trips[part.branch]
                mean = None if None in each else sum(filter(None, each)) / len(each)
                loop = dataclasses.replace(self.loop(part, known, depth + 1), trips=mean)
            else:
                # A region: count what its parts do in one execution.
                once = dataclasses.replace(found, number=found.runs[part.branch], started=[])
                loop = dataclasses.replace(self._built(part, 1, once, depth + 1), waits=0)
            inner.append(dataclasses.replace(loop, runs=runs))
        copies, waits = self._moves(trips, found)
        return Loop(depth, span.begin, trips, *self._counts(rows), copies, tuple(inner), waits)

    def _parts(
        self, span: _Span, trips: float | None, found: _Passes
    ) -> tuple[list[int], list[_Span]]:
        """Return the rows that every pass of `span` executes, and the spans to count separately.

        These spans are the inner loops, and the regions that some passes skip. `found` has the
        events in the evaluated passes. `trips` is the number of all passes, None if it is unknown.
        """
        rows, parts = _own(span), []
        for part in span.inner:
            runs = self._runs(found.runs[part.branch], trips, found.number)
            if part.is_loop or runs is not None:
                parts.append(part)
            else:
                more, within = self._parts(part, trips, found)
                rows, parts = rows + more, parts + within
        return sorted(rows), parts

    @staticmethod
    def _runs(count: float, trips: float | None, number: int) -> float | None:
        """Return how often an event happens in all passes of a loop; None if in every pass.

        It happened `count` times in the `number` passes that were evaluated, and the loop has
        `trips` passes. If `trips` is None (unknown), a `count` of at most ``_EDGE`` is returned
        unchanged, and for a larger `count` the result is None.
        """
        if count >= number:
            return None
        if trips is None:  # What is not only done in the first passes may be done in any.
            return count if count <= _EDGE else None
        return count * trips / number

    def _counts(self, rows: Sequence[int]) -> tuple[int, int, dict[str, int]]:
        issued = sum(not self._lines[row].startswith("{}") for row in rows)
        busy = {k: sum(self._busy[row][at] for row in rows) for at, k in enumerate(self._kinds)}
        return len(rows), issued, busy

    def _moves(self, trips: float | None, found: _Passes) -> tuple[tuple[Copy, ...], int]:
        """Return the copies that a loop starts, and how often a pass waits for its own copies.

        The second number counts waits for copies that the same pass started. `found` has the starts
        and waits in the evaluated passes. `trips` is the number of all passes, None if unknown.
        """
        copies, own = [], set()
        for row, which in sorted({(row, which) for _, row, which, _ in found.started}):
            source, target, _, _, size, _ = self._copies[row][which]
            starts = [(at, flag) for at, r, w, flag in found.started if (r, w) == (row, which)]
            # Take a start in the middle, because the first and last passes of a pipeline differ.
            at, flag = starts[len(starts) // 2]
            later = [p - at for p, r, f in found.waited if f == flag and (p, r) > (at, row)]
            copies.append(
                Copy(
                    source,
                    target,
                    int(size) if size else None,
                    self._runs(len(starts), trips, found.number),
                    min(later, default=1),
                )
            )
            if copies[-1].of_memory and copies[-1].ahead == 0:
                own.add((row, flag))
        waits, waiting = 0, set()
        middle = found.number // 2
        events = [(row, True, flag) for row, flag in own]
        events += [(row, False, flag) for at, row, flag in found.waited if at == middle]
        for _, starts_, flag in sorted(events, key=lambda event: event[:2]):
            if starts_:
                waiting.add(flag)
            elif flag in waiting:
                # Copies that are started together are waited for together.
                waits += 1
                waiting.clear()
        return tuple(copies), waits


def _own(span: _Span) -> list[int]:
    """Return the rows of a loop or region that are outside of its inner loops and regions."""
    rows = set(range(span.begin, span.end))
    for inner in span.inner:
        rows -= set(range(inner.begin, inner.end))
    return sorted(rows)


def _utilization(text: str, cycles: int) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """Parse the utilization file `text`: return ``(units by kind, busy units in each cycle)``.

    The first result has the number of hardware units of each kind, such as ``MXU``. The second has
    a tuple for each of the `cycles` of the listing: the number of busy units of each kind. Without
    `text`, there are no kinds.
    """
    if "== UTILIZATION:" not in text:
        return {}, [()] * cycles
    head, body = text.split("== UTILIZATION:")
    kinds, numbers = head.strip().splitlines()[-2:]
    units = dict(zip(kinds.split(", "), map(int, numbers.split()), strict=True))
    rows = [tuple(map(int, line.split())) for line in body.splitlines() if line.strip()]
    if len(rows) != cycles:
        raise ValueError(f"{cycles} bundles, but {len(rows)} lines of utilization")
    return units, rows
