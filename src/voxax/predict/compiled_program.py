"""A compiled program, kernel by kernel: lower bounds of its time, and tables of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from voxax.predict.chip import Chip
from voxax.predict.hlo import Operation
from voxax.predict.listing import Listing

# Of a kernel's cycles, so many with a unit at work make it the kernel's limit.
_SATURATED = 0.8
# Kinds of the utilization that count a part of another kind once more.
_PARTS = ("VLOAD:FILL", "VSTORE:SPILL")


@dataclasses.dataclass(frozen=True)
class CompiledKernel(Operation):
    """One kernel of a program.

    Attributes:
      listing: of its schedule; None where the compiler wrote none.
    """

    listing: Listing | None

    @property
    def is_pallas(self) -> bool:
        """True for a Pallas kernel, False for one of XLA's own."""
        return self.kind == "tpu_custom_call"

    def cost(self, chip: Chip, passes: float = 1) -> Cost:
        """Return the cost of all runs.

        Args:
          chip: it was compiled for.
          passes: of loops whose number is known at run time only: those of a Pallas kernel's own,
            and of the program's around a kernel of XLA's.
        """
        times = self.times
        if self.in_open_loop and not self.is_pallas:
            times, passes = times * passes, 1
        if self.listing is None:
            return Cost(self, 0.0, 0.0, float(times * self.bytes), {}, chip)
        total = self.listing.whole.total(passes)
        copied = total.granules * chip.granule
        moved = max(copied, self.bytes) if self.is_pallas else self.bytes
        busy = {
            kind: times * count / self.listing.units[kind]
            for kind, count in total.busy.items()
            if kind not in _PARTS
        }
        return Cost(self, times * total.cycles, times * total.bundles, times * moved, busy, chip)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of all runs of a kernel.

    Attributes:
      kernel: whose.
      cycles: of the schedule, without waits for copies.
      bundles: cycles in which something is issued.
      bytes: moved from or to HBM.
      busy: cycles that each kind of unit needs alone.
      chip: on which.
    """

    kernel: CompiledKernel
    cycles: float
    bundles: float
    bytes: float
    busy: Mapping[str, float]
    chip: Chip

    @property
    def seconds(self) -> float:
        """Seconds at least: copies run beside the schedule, and the longer of both counts."""
        return max(self.cycles / self.chip.clock, self.bytes / self.chip.device_bandwidth)

    @property
    def bound(self) -> str:
        """``bytes``, the kind of unit at work in most cycles, or ``latency``.

        ``MXU`` and ``issue slots (...)`` need a unit at work in four cycles of five; with less the
        schedule waits for results of its own.
        """
        if self.bytes / self.chip.device_bandwidth >= self.cycles / self.chip.clock:
            return "bytes"
        kind, most = max(self.busy.items(), key=lambda item: item[1], default=("", 0.0))
        if most >= _SATURATED * self.cycles:
            return kind if kind == "MXU" else f"issue slots ({kind})"
        return "issue slots" if self.bundles >= _SATURATED * self.cycles else "latency"


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program compiled for a chip.

    Attributes:
      chip: one core of it.
      kernels: in the order of the program.
      copied: bytes of copies that run beside the kernels.
      temporary, arguments, results: bytes, as the compiler counts.
      flops: as the compiler counts, without those in Pallas kernels.
    """

    chip: Chip
    kernels: tuple[CompiledKernel, ...]
    copied: int
    temporary: int
    arguments: int
    results: int
    flops: float

    def kernel(self, name: str = "") -> CompiledKernel:
        """Return the kernel of this name; without one, the Pallas kernel of most cycles.

        Raises:
          KeyError: there is none.
        """
        found = [k for k in self.kernels if (k.name == name if name else k.is_pallas) and k.listing]
        if not found:
            raise KeyError(f"no kernel {name!r}: there are {[k.name for k in self.kernels]}")
        return max(found, key=lambda k: k.cost(self.chip).cycles)

    def costs(self, passes: Mapping[str, float] | float = 1) -> list[Cost]:
        """Return the costs of every kernel.

        Args:
          passes: by name of the kernel, or one number for all; see :meth:`CompiledKernel.cost`.
        """
        each = passes if isinstance(passes, Mapping) else {}
        every = 1 if isinstance(passes, Mapping) else passes
        return [k.cost(self.chip, each.get(k.name, every)) for k in self.kernels]

    def seconds(self, passes: Mapping[str, float] | float = 1) -> float:
        """Return seconds: kernels in sequence, with copies that share the memory's bandwidth."""
        costs = self.costs(passes)
        moved = sum(cost.bytes for cost in costs) + self.copied
        return max(sum(cost.seconds for cost in costs), moved / self.chip.device_bandwidth)

    @property
    def lower_bound(self) -> float:
        """Seconds: arguments and results once through HBM, or the operations at the peak rate."""
        return max(self._moved_once, self._computed)

    @property
    def lower_bound_by(self) -> str:
        """The part that gives the lower bound: ``bytes`` or ``operations``."""
        return "bytes" if self._moved_once >= self._computed else "operations"

    @property
    def _moved_once(self) -> float:
        return (self.arguments + self.results) / self.chip.device_bandwidth

    @property
    def _computed(self) -> float:
        return self.flops / (self.chip.peak * self.chip.cores)


LEFT_OUT = (
    "Left out: the start of kernels, the latency of copies (only their bytes are counted), and "
    "work that a second core of the device takes over. Regions that a predicate guards are counted "
    "as executed. Loops whose passes are known at run time only count as one pass, unless their "
    "number is given. Nothing was measured on a TPU."
)


def render(
    program: CompiledProgram, passes: Mapping[str, float] | float = 1, most: int = 12
) -> str:
    """Return a table of kernels, the slowest first, and the whole."""
    chip = program.chip
    rows = [("kernel", "runs", "cycles", "issued", "MB", "us", "bound")]
    costs = sorted(program.costs(passes), key=lambda cost: -cost.seconds)
    for cost in costs[:most]:
        kernel = cost.kernel
        rows.append(
            (
                kernel.name,
                f"{kernel.times}{'+' * kernel.in_open_loop}",
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
    lines.append(
        f"{chip.name} at {chip.clock / 1e9:.3f} GHz (inferred): "
        f"{1e6 * program.seconds(passes):,.1f} us; "
        f"temporary memory {program.temporary / 1e6:,.1f} MB"
    )
    return "\n".join(line.rstrip() for line in lines)


def render_loops(program: CompiledProgram, name: str = "") -> str:
    """Return the loops of one kernel as text; without a name, of the slowest Pallas kernel."""
    kernel = program.kernel(name)
    assert kernel.listing is not None
    lines = [f"{kernel.name} ({kernel.kind}), cycles (of them issued) of one pass, units busy:"]
    for loop in kernel.listing.whole.walk():
        trips = "run-time" if loop.trips is None else f"{loop.trips:,}"
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
