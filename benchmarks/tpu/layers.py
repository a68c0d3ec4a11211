"""Predict 3x3x3 layers on TPUs: the window kernels, and XLA's gather with products.

    python benchmarks/tpu/layers.py --data FOLDER

Submanifold layers of 16 to 256 channels in bfloat16 on three real scans at 5 cm: thin LiDAR, a
dense scan and a room; forward, also by lists of items where one core works alone; wgrad (dgrad of
such a layer is forward over the reversed taps); and both gradients at once, as in a training step.
Times are predicted from the TPU compiler's schedules (voxax.predict): whole programs, what XLA does
before and after a kernel included; the kernel map is not. Of a device with two cores each takes
half of the work. Nothing runs. The lower bound: features, weights and results once through HBM, or
the products of neighbors at the peak rate.
Needs libtpu. Results go to results/tpu_layers.md and .json after each generation and scan; a run
goes on where another was stopped, and takes again what was made of other kernels.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import CHIPS, Kept, Row, options
from benchmarks.tpu.program import APART, digest, visits
from benchmarks.tpu.scans import cells, neighbors, points

from voxax.errors import VoxaxError
from voxax.kernels.implicit_gemm.items import on_host
from voxax.predict import CompiledProgram, outcomes
from voxax.predict.candidates import passes

SCANS, VOXEL = ("semantickitti", "lone_star", "office1"), 0.05
CHANNELS, PRODUCTS = (16, 64, 128, 256), ("forward", "wgrad", "gradients")
CASE = "scan", "method", "channels", "product", "chip"
# XLA's gather is slow to compile where there is much: one width.
METHODS = {
    "windows": ("benchmarks.tpu.program:product", CHANNELS, PRODUCTS),
    "lists": ("benchmarks.tpu.program:lists", (64, 128, 256), PRODUCTS[:1]),
    "gather": ("benchmarks.tpu.baselines:xla", (64,), PRODUCTS[:2]),
}


def predicted(
    program: CompiledProgram, steps: float, table: np.ndarray, channels: int, product: str
) -> Any:
    """The program's seconds and lower bound, and the window kernel's cycles and limit."""
    chip, rows = program.chip, len(table)
    known = {kernel.name: steps for kernel in program.kernels if kernel.is_pallas}
    kernels = [cost for cost in program.costs(known) if cost.kernel.is_pallas]
    both = product == "gradients"  # which read dy once
    operations = (1 + both) * 2 * int((table >= 0).sum()) * channels**2
    operations /= chip.peak * chip.cores
    moved = 2 * ((2 + both) * rows * channels + (1 + both) * 27 * channels**2)
    moved /= chip.bandwidth * chip.cores
    return {
        "seconds": program.seconds(known, at_least=True),
        "open": len(program.open(known)),
        "lower_bound": max(operations, moved),
        "cycles": sum(cost.cycles for cost in kernels) / rows,
        "kernel": sum(cost.seconds for cost in kernels),
        "bound": max(kernels, key=lambda cost: cost.seconds).bound if kernels else "",
    }


def measure(scan: str, table: np.ndarray, chip: str, method: str) -> list[dict[str, Any]]:
    target, widths, products = METHODS[method]
    cases = [(product, channels) for channels in widths for product in products]
    asked = [
        (chip, target, {"product": product, "rows": len(table), "channels": channels})
        for product, channels in cases
    ]
    found = []
    for (product, channels), outcome in zip(cases, outcomes(asked), strict=True):
        row: dict[str, Any] = {"scan": scan, "voxels": len(table), "chip": chip, "method": method}
        row |= {"product": product, "channels": channels, "code": _digest(method)}
        if isinstance(outcome, VoxaxError):
            found.append(row | {"error": str(outcome)[:600]})
            continue
        steps = 1.0
        if method == "windows":
            steps = float(visits(chip, table, product=product, channels=channels))
        elif method == "lists":
            steps = passes(on_host(np.asarray(table, np.int32), None))
        found.append(row | predicted(outcome, steps, table, channels, product))
    return found


def _digest(method: str) -> str:
    return digest(method if method in ("windows", "lists") else "baselines")


def _case(row: Row) -> tuple[Any, ...]:
    return tuple(row[field] for field in CASE)


def table_of(rows: list[Row]) -> list[str]:
    """A line for each scan, width and product: by chip cycles a row, and of the lower bound."""
    known = {_case(row): row for row in rows}
    shown = [("windows", product, product) for product in PRODUCTS]
    shown.insert(1, ("lists", "forward", "forward, lists"))
    voxels = {row["scan"]: row["voxels"] for row in rows}
    lines = []
    for scan, channels, (method, product, name) in itertools.product(voxels, CHANNELS, shown):
        case = scan, method, channels, product
        cells = [_cell(known.get((*case, chip))) for chip in CHIPS]
        if any(cells):
            lines.append([f"{scan}, {voxels[scan]:,}", channels, name, *cells])
    return report.table(["scan, voxels", "channels", "product", *CHIPS], lines, (0, 2))


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        if row["method"] == "lists":
            return ""
        return "one after the other" if APART in row["error"] else "does not compile"
    least = "at least " if row.get("open") else ""
    times = f"{least}{row['seconds'] / row['lower_bound']:.0f}x"
    return f"{row['cycles']:.1f}, {times} ({row['bound']})"


def against_gather(rows: list[Row]) -> list[str]:
    """A line for each scan and product at 64 channels: XLA's gather over the window kernels."""
    known = {_case(row): row.get("seconds") for row in rows}
    lines = []
    for scan, product in itertools.product(
        dict.fromkeys(row["scan"] for row in rows), METHODS["gather"][2]
    ):
        cells = []
        for chip in CHIPS:
            ours, other = (
                known.get((scan, method, 64, product, chip)) for method in ("windows", "gather")
            )
            cells.append(f"{1e3 * ours:.2f}, {other / ours:.1f}x" if ours and other else "")
        if any(cells):
            lines.append([scan, product, *cells])
    return report.table(["scan, 64 channels", "product", *CHIPS], lines, 2)


def lines_of(rows: list[Row]) -> list[str]:
    return [
        "# 3x3x3 layers on TPUs, predicted",
        "",
        "See benchmarks/tpu/layers.py. Cycles of the window kernel for a row; the whole layer over "
        "its lower bound; and what limits the kernel.",
        "",
        *table_of(rows),
        "",
        "Milliseconds of the layer, and XLA's gather over it.",
        "",
        *against_gather(rows),
    ]


def main() -> None:
    parser = options(__doc__, data=True)
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=SCANS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    given = parser.parse_args()
    order = {"scan": SCANS, "chip": CHIPS}
    kept = Kept(given.out, "tpu_layers", CASE, order, lines_of)
    for method, scan in itertools.product(given.methods, given.scans):
        table = neighbors(cells(points(given.data, scan), VOXEL))
        for chip in given.chips:
            done = kept.done(("scan", "method", "chip"), lambda row: _digest(row["method"]))
            if given.anew or (scan, method, chip) not in done:
                kept.add(measure(scan, table, chip, method))
                print(scan, method, chip, flush=True)
    kept.show()


if __name__ == "__main__":
    main()
