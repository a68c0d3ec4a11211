"""Programs as tables."""

from __future__ import annotations

from collections.abc import Mapping

from voxax.forecast.program import Program

LEFT_OUT = (
    "Left out: the start of kernels, the latency of copies (only their bytes are counted), and "
    "work that a second core of the device takes over. Regions that a predicate guards are counted "
    "as executed. Loops whose passes are known at run time only count as one pass, unless their "
    "number is given. Nothing was measured on a TPU."
)


def render(program: Program, passes: Mapping[str, float] | float = 1, most: int = 12) -> str:
    """Kernels by time, the dearest first, then the whole."""
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


def render_loops(program: Program, name: str = "") -> str:
    """The loops of one kernel; without a name, of the dearest Pallas kernel."""
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
