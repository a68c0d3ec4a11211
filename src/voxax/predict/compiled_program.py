"""Predicted time of a compiled TPU program, kernel by kernel, and tables of the results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from voxax.errors import InputError
from voxax.predict.chip import Chip
from voxax.predict.hlo import Operation
from voxax.predict.listing import Copy, Listing, Loop

Passes = Mapping[str, float | None] | float | None
"""Number of passes (iterations) of loops whose number of passes is known only at run time: a dict
by kernel name, or one number for all kernels."""

# A unit limits a kernel if it is at work in at least this part of the cycles.
_SATURATED = 0.8
# Kinds of units that the utilization counts again as part of another kind.
_PARTS = ("VLOAD:FILL", "VSTORE:SPILL")


@dataclasses.dataclass(frozen=True)
class CompiledKernel(Operation):
    """One kernel of a compiled program.

    Attributes:
      listing: the compiler's schedule of the kernel. None if the compiler wrote none.
    """

    listing: Listing | None

    @property
    def is_pallas(self) -> bool:
        """True for a Pallas kernel, False for a kernel that XLA generates."""
        return self.kind == "tpu_custom_call"

    def cost(self, chip: Chip, passes: float | None = None) -> Cost:
        """Return the cost of all runs of the kernel in one run of the program, on one core.

        Args:
          chip: the chip that the program was compiled for.
          passes: number of passes of each loop whose number is known only at run time: the loops in
            a Pallas kernel, or the program's loops around an XLA kernel. None if unknown.
        """
        times: float = self.times
        # An operation on single numbers is part of the program's own code and has no listing.
        complete = self.listing is not None or all(math.prod(s) == 1 for _, s in self.operands)
        if self.in_open_loop:
            complete = complete and passes is not None and not self.is_pallas
            if not self.is_pallas:
                times, passes = times * (1 if passes is None else passes), None
        if self.listing is None:
            moved = self.bytes / chip.cores
            seconds = times * (chip.launch + moved / chip.bandwidth)
            return Cost(self, 0.0, 0.0, times * moved, {}, chip, seconds, complete)
        total = self.listing.whole.total(passes)
        traffic = Traffic.of(self.listing.whole, chip, self.bytes / chip.cores, passes)
        busy = {
            kind: times * count / self.listing.units[kind]
            for kind, count in total.busy.items()
            if kind not in _PARTS
        }
        seconds = chip.launch + traffic.seconds(self.listing.whole, passes)
        return Cost(
            self,
            times * total.cycles,
            times * total.bundles,
            times * traffic.bytes,
            busy,
            chip,
            times * seconds,
            complete and total.complete,
        )


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes that a kernel's copies move from or to HBM; :meth:`seconds` predicts times from them.

    Attributes:
      chip: the chip that the kernel runs on.
      bytes: bytes of all copies.
      unsized: estimated bytes of each copy whose size is known only at run time.
    """

    chip: Chip
    bytes: float
    unsized: float

    @classmethod
    def of(cls, whole: Loop, chip: Chip, operands: float, passes: float | None) -> Traffic:
        """Compute the traffic of a kernel from the copies in its listing.

        Args:
          whole: the loop that stands for the whole kernel, see :class:`Listing`.
          chip: the chip that the kernel runs on.
          operands: bytes of the operands and results in HBM. Copies of unknown size are assumed to
            move what remains of these bytes after the copies of known size. If the kernel has no
            copies, its traffic is ``operands``.
          passes: see :meth:`CompiledKernel.cost`.
        """
        sized, unsized, copies = 0.0, 0.0, 0
        for copy, runs in _copies(whole, 1, passes):
            copies += 1
            if copy.granules is None:
                unsized += runs
            else:
                sized += runs * copy.granules * chip.granule
        rest = max(operands - sized, 0.0) if unsized or not copies else 0.0
        return cls(chip, sized + rest, rest / unsized if unsized else 0.0)

    def seconds(self, loop: Loop, passes: float | None) -> float:
        """Return the predicted seconds of all passes of a loop; see `cost` for `passes`.

        A pass that waits for copies that it started itself takes the time of its schedule plus that
        of the copies. If the copies were started N passes earlier (``Copy.ahead``), a pass takes
        the longer of these times, and N passes take at least the latency plus the transfer.
        """
        trips = _times(loop, passes)
        within = None if loop.trips is None else passes
        inside = [(part, self.seconds(part, within)) for part in loop.inner]
        busy = loop.cycles / self.chip.clock
        busy += sum(seconds for part, seconds in inside if part.runs is None)
        own, before = [], []
        for copy in loop.copies:
            if copy.of_memory:
                share = 1 if copy.runs is None else min(copy.runs / trips, 1)
                (before if copy.ahead else own).append((copy, share, share * self._transfer(copy)))
        if own:
            most = max(share for _, share, _ in own)
            busy += most * loop.waits * self.chip.latency + sum(time for *_, time in own)
        seldom = [(part.runs, seconds) for part, seconds in inside if part.runs is not None]
        took = trips * busy + sum(runs * seconds for runs, seconds in seldom)
        if before and (some := max(share for _, share, _ in before)) > 0:
            copied = trips * some
            transfer = sum(time for *_, time in before) / some
            ahead = min(copy.ahead for copy, share, _ in before if share >= some / 2)
            wait = max((self.chip.latency + transfer) / ahead, transfer)
            # The body of a pipeline may be a region that the first or last passes skip.
            bodies = max(copied, *(runs for runs, _ in seldom)) if seldom else trips
            took += copied * max(wait - took / bodies, 0)
            # The first pass waits for its copies, because no earlier pass has started them.
            took += (loop.trips is None) * (self.chip.latency + transfer)
        return took

    def _transfer(self, copy: Copy) -> float:
        size = self.unsized if copy.granules is None else copy.granules * self.chip.granule
        return size / self.chip.bandwidth


def _copies(loop: Loop, reached: float, passes: float | None) -> Iterator[tuple[Copy, float]]:
    """Yield ``(copy, number of starts)`` for each HBM copy in a loop and in its inner loops.

    `reached` is how often the loop is reached. Loops whose number of passes is known only at run
    time take `passes` passes each time. They take one pass if `passes` is None, or inside another
    such loop.
    """
    trips = _times(loop, passes)
    for copy in loop.copies:
        if copy.of_memory:
            yield copy, reached * (trips if copy.runs is None else copy.runs)
    for part in loop.inner:
        runs = trips if part.runs is None else part.runs
        yield from _copies(part, reached * runs, None if loop.trips is None else passes)


def _times(loop: Loop, passes: float | None) -> float:
    return loop.trips if loop.trips is not None else 1 if passes is None else passes


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of all runs of a kernel in one run of the program.

    Attributes:
      kernel: the kernel.
      cycles: cycles of the schedule, without waits for copies.
      bundles: number of cycles in which an instruction is issued.
      bytes: bytes that a core moves from or to HBM.
      busy: dict from each kind of unit to the cycles that it is at work.
      chip: the chip that the kernel runs on.
      seconds: predicted time, with waits for copies and the start of the kernel.
      complete: False if a loop's number of passes is unknown, so that one pass is counted; or if
        the kernel has no listing, although some operand has more than one element.
    """

    kernel: CompiledKernel
    cycles: float
    bundles: float
    bytes: float
    busy: Mapping[str, float]
    chip: Chip
    seconds: float
    complete: bool

    @property
    def bound(self) -> str:
        """What limits the kernel's time, as text.

        - ``bytes``: the transfer takes longer than the schedule.
        - ``copies``: waits for copies take more than a fifth of the time.
        - ``MXU``, ``issue slots (KIND)``: a unit of this kind is at work in at least four cycles of
          five.
        - ``issue slots``: instructions are issued in at least four cycles of five.
        - ``latency``: none of these; the schedule mostly waits for results of its own instructions.
        """
        scheduled = self.cycles / self.chip.clock
        if self.bytes / self.chip.bandwidth >= scheduled:
            return "bytes"
        if scheduled < _SATURATED * (self.seconds - self.kernel.times * self.chip.launch):
            return "copies"
        kind, most = max(self.busy.items(), key=lambda item: item[1], default=("", 0.0))
        if most >= _SATURATED * self.cycles:
            return kind if kind == "MXU" else f"issue slots ({kind})"
        return "issue slots" if self.bundles >= _SATURATED * self.cycles else "latency"


@dataclasses.dataclass(frozen=True)
class CopyBeside:
    """An asynchronous copy that runs in parallel with kernels.

    Attributes:
      begin: index of the first kernel after the start of the copy.
      end: index of the first kernel after the end of the copy.
      bytes: bytes that the copy moves from or to HBM.
      times: how often the program runs the copy.
      prefetched: whether the copy runs during the program's previous run, so that no kernel waits.
    """

    begin: int
    end: int
    bytes: int
    times: int
    prefetched: bool = False


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that was compiled for a TPU, with what its kernels cost.

    Attributes:
      chip: hardware facts of one core of the TPU.
      kernels: the kernels in the order of the program.
      copies: the copies that run in parallel with the kernels.
      temporary, arguments, results: bytes of the temporary arrays, the arguments and the results,
        as the compiler counts.
      flops: number of operations, as the compiler counts, without operations in Pallas kernels.
      values: bytes of all arguments and results except coordinates, tables and masks.
    """

    chip: Chip
    kernels: tuple[CompiledKernel, ...]
    copies: tuple[CopyBeside, ...]
    temporary: int
    arguments: int
    results: int
    flops: float
    values: int

    @property
    def copied(self) -> int:
        """Bytes of all copies that run in parallel with the kernels."""
        return sum(copy.bytes * copy.times for copy in self.copies)

    def kernel(self, name: str = "") -> CompiledKernel:
        """Return the kernel called ``name``. Without a name, return the slowest Pallas kernel.

        The slowest has the most cycles. Kernels whose schedule is unknown are left out.

        Raises:
          KeyError: there is no such kernel.
        """
        found = [k for k in self.kernels if (k.name == name if name else k.is_pallas) and k.listing]
        if not found:
            raise KeyError(f"no kernel {name!r}: there are {[k.name for k in self.kernels]}")
        return max(found, key=lambda k: k.cost(self.chip).cycles)

    def costs(self, passes: Passes = None) -> list[Cost]:
        """Return the cost of every kernel, in the order of the program.

        Args:
          passes: passes by name of the kernel, or one number for all; see
            :meth:`CompiledKernel.cost`.
        """
        each = passes if isinstance(passes, Mapping) else {}
        every = None if isinstance(passes, Mapping) else passes
        return [k.cost(self.chip, each.get(k.name, every)) for k in self.kernels]

    def open(self, passes: Passes = None) -> list[str]:
        """Return the names of the kernels that are not counted in full, see :class:`Cost`.

        ``passes`` is as for :meth:`costs`.
        """
        return [cost.kernel.name for cost in self.costs(passes) if not cost.complete]

    def seconds(self, passes: Passes = None, at_least: bool = False) -> float:
        """Return the predicted seconds of one run of the program.

        The kernels run in sequence. Parallel copies share the bandwidth of the memory with them.

        Args:
          passes: passes by name of the kernel, or one number for all; see
            :meth:`CompiledKernel.cost`.
          at_least: whether to accept loops whose number of passes is unknown. They are counted with
            one pass.

        Raises:
          InputError: ``at_least`` is False and a kernel is not counted in full.
        """
        costs = self.costs(passes)
        if not at_least and (some := [cost.kernel.name for cost in costs if not cost.complete]):
            raise InputError(
                f"{len(some)} kernels are not counted in full, such as {some[0]}: give passes= for "
                "loops whose number of passes is known at run time only, or at_least=True"
            )
        moved = sum(c.bytes for c in costs) / self.chip.bandwidth
        moved += self.copied / self.chip.device_bandwidth
        return max(sum(c.seconds for c in costs) + self._waits(costs), moved)

    def _waits(self, costs: Sequence[Cost]) -> float:
        """Return the seconds that the program waits for the copies in parallel with kernels.

        `costs` has the cost of each kernel, in the order of the program. A wait is the time by
        which a copy takes longer than the kernels that run in parallel. Prefetched copies cause no
        waits.
        """
        waits = 0.0
        for copy in self.copies:
            if copy.prefetched:
                continue
            took = self.chip.latency + copy.bytes / self.chip.device_bandwidth
            beside = costs[copy.begin : copy.end]
            hidden = sum(cost.seconds / max(cost.kernel.times, 1) for cost in beside)
            waits += copy.times * max(took - hidden, 0.0)
        return waits

    @property
    def lower_bound(self) -> float:
        """Lower bound of the program's seconds: the larger of two times.

        The first is to move features, weights and results through HBM once. The second is to
        compute all operations at peak rate, except those in Pallas kernels, which depend on voxels.
        """
        return max(self._moved_once, self._computed)

    @property
    def lower_bound_by(self) -> str:
        """The part that gives the lower bound: ``bytes`` or ``operations``."""
        return "bytes" if self._moved_once >= self._computed else "operations"

    @property
    def _moved_once(self) -> float:
        return self.values / self.chip.device_bandwidth

    @property
    def _computed(self) -> float:
        return self.flops / (self.chip.peak * self.chip.cores)


LEFT_OUT = (
    "Each pass of a loop takes the longer of its schedule and of its copies (latency and "
    "transfer). Left out: the loads of code, and what cores wait for each other. Regions under "
    "predicates that depend on data are counted as executed. Nothing was measured on a TPU by "
    "voxax."
)


def render(program: CompiledProgram, passes: Passes = None, most: int = 12) -> str:
    """Return a table of the ``most`` slowest kernels as text, with the program's time.

    ``passes`` is as for :meth:`CompiledProgram.costs`.
    """
    chip = program.chip
    rows = [("kernel", "runs", "cycles", "issued", "MB", "us", "bound")]
    costs = sorted(program.costs(passes), key=lambda cost: -cost.seconds)
    for cost in costs[:most]:
        kernel = cost.kernel
        rows.append(
            (
                kernel.name,
                f"{kernel.times}{'' if cost.complete else '+'}",
                f"{cost.cycles:,.0f}",
                f"{cost.bundles:,.0f}",
                f"{cost.bytes / 1e6:,.1f}",
                f"{1e6 * cost.seconds:,.1f}",
                cost.bound,
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)) for r in rows]
    if len(costs) > most:
        rest = sum(cost.seconds for cost in costs[most:])
        lines.append(f"and {len(costs) - most} more, {1e6 * rest:,.1f} us")
    some = program.open(passes)
    lines.append(
        f"{chip.name} at {chip.clock / 1e9:.3f} GHz (inferred): {'at least ' if some else ''}"
        f"{1e6 * program.seconds(passes, at_least=True):,.1f} us; "
        f"temporary memory {program.temporary / 1e6:,.1f} MB"
    )
    if some:
        lines.append(
            f"+: {len(some)} kernels are counted with one pass of each loop of unknown length"
        )
    return "\n".join(line.rstrip() for line in lines)


def render_loops(program: CompiledProgram, name: str = "") -> str:
    """Return a table of the loops of one kernel of ``program`` as text.

    ``name`` is the kernel's name; without a name, it is the slowest Pallas kernel.
    """
    kernel = program.kernel(name)
    assert kernel.listing is not None
    lines = [f"{kernel.name} ({kernel.kind}), cycles (of them issued) of one pass, units busy:"]
    for loop in kernel.listing.whole.walk():
        trips = "run-time" if loop.trips is None else f"{loop.trips:,.4g}"
        if loop.runs is not None:
            trips += f", in {loop.runs:,.4g} passes"
        busy = ", ".join(
            f"{kind} {loop.busy[kind] / units / max(loop.cycles, 1):.0%}"
            for kind, units in kernel.listing.units.items()
            if loop.busy.get(kind)
        )
        lines.append(
            f"{'  ' * loop.depth}at {loop.first:#x}: x {trips}, {loop.cycles:,} "
            f"({loop.bundles:,}); {busy}"
        )
    return "\n".join(lines)
