"""Predict one layer on TPUs: window kernel, XLA's gather, copies of rows.

    python benchmarks/tpu/layers.py --data FOLDER

A 3x3x3 submanifold layer of 64 channels in bfloat16 on two real scans at 5 cm: forward, and
training (forward, dgrad and wgrad). Times are predicted from the TPU compiler's schedules
(voxax.predict): whole programs, what XLA does before and after a kernel included; the kernel map
is not, nor are the lists that the copies of rows go by. Of a device with two cores each takes half
of all work, as if XLA always divided it evenly, in its own kernels too. Nothing runs.
The lower bound: operands and results once through HBM, or the products of neighbours at the peak
rate.
Needs libtpu. Results go to results/tpu_layers.md and .json after each generation and scan; a run
goes on where another was stopped, and takes again what was made of other kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.program import digest, visits
from benchmarks.tpu.scans import cells, neighbors, points

from voxax.errors import VoxaxError
from voxax.predict import TOPOLOGIES, CompiledProgram, outcomes

RESULTS = Path(__file__).parents[1] / "results"
SCANS, VOXEL, CHANNELS, TILE = ("semantickitti", "lone_star"), 0.05, 64, 128
METHODS = {
    "windows": "benchmarks.tpu.program:product",
    "XLA gather": "benchmarks.tpu.baselines:xla",
    "row copies": "benchmarks.tpu.baselines:row_copies",
}
# dgrad of a submanifold layer is forward over the reversed taps.
TRAINING = {"forward": 2, "wgrad": 1}


def predicted(program: CompiledProgram, method: str, table: np.ndarray) -> dict[str, Any]:
    """Seconds, those of them in Pallas' kernels, and what bounds the dearest kernel."""
    number = 1.0
    if method == "windows":
        number = float(visits(program.chip.name, table))
    elif method == "row copies":
        number = float((table >= 0).sum() / -(-len(table) // TILE))
    passes = {kernel.name: number for kernel in program.kernels if kernel.is_pallas}
    costs = program.costs(passes)
    return {
        "seconds": program.seconds(passes),
        "kernels": sum(cost.seconds for cost in costs if cost.kernel.is_pallas),
        "bound": max(costs, key=lambda cost: cost.seconds).bound,
    }


def lower_bounds(program: CompiledProgram, table: np.ndarray) -> tuple[float, float]:
    """Return the lower bounds of forward and of training."""
    chip, rows = program.chip, len(table)
    operations = 2 * int((table >= 0).sum()) * CHANNELS**2 / (chip.peak * chip.cores)
    moved = 2 * (2 * rows * CHANNELS + 27 * CHANNELS**2) / (chip.bandwidth * chip.cores)
    return max(operations, moved), 3 * max(operations, moved)


def measure(name: str, table: np.ndarray, chip: str, methods: list[str]) -> list[dict[str, Any]]:
    asked = [
        (chip, METHODS[method], {"product": product, "rows": len(table)})
        for method in methods
        for product in TRAINING
    ]
    outcome = iter(outcomes(asked))
    found = []
    for method in methods:
        programs = {product: next(outcome) for product in TRAINING}
        row: dict[str, Any] = {"scan": name, "voxels": len(table), "chip": chip}
        row |= {"method": method, "code": _digest(method)}
        errors = [str(p) for p in programs.values() if isinstance(p, VoxaxError)]
        if errors:
            found.append(row | {"error": errors[0][:600]})
            continue
        each = {p: predicted(program, method, table) for p, program in programs.items()}
        forward, training = lower_bounds(programs["forward"], table)
        row |= {
            "forward": each["forward"]["seconds"],
            "training": sum(times * each[p]["seconds"] for p, times in TRAINING.items()),
            "forward_kernels": each["forward"]["kernels"],
            "training_kernels": sum(times * each[p]["kernels"] for p, times in TRAINING.items()),
            "forward_lower_bound": forward,
            "training_lower_bound": training,
            "bound": each["forward"]["bound"],
        }
        found.append(row)
    return found


def _digest(method: str) -> str:
    return digest("windows" if method == "windows" else "baselines")


def _case(row: dict[str, Any]) -> tuple[str, ...]:
    return row["scan"], row["chip"], row["method"]


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| scan, voxels | chip | method | forward, ms | of the lower bound | training, ms "
        "| of the lower bound | bound |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        head = f"| {r['scan']}, {r['voxels']:,} | {r['chip']} | {r['method']} "
        if "error" in r:
            lines.append(f"{head}| does not compile | | | | |")
            continue
        lines.append(
            f"{head}| {1e3 * r['forward']:.2f} | {r['forward'] / r['forward_lower_bound']:.1f} x "
            f"| {1e3 * r['training']:.2f} | {r['training'] / r['training_lower_bound']:.1f} x "
            f"| {r['bound']} |"
        )
    return "\n".join(lines)


def summary_of(rows: list[dict[str, Any]]) -> str:
    """A line for each scan, generation and product that all methods are known of."""
    known = {_case(row): row for row in rows if "error" not in row}
    lines = [
        "| scan | chip | product | window kernels | of it the kernels | copies of rows "
        "| XLA's gather | lower bound | the better of both, of window kernels |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for scan, chip in dict.fromkeys((row["scan"], row["chip"]) for row in rows):
        found = [known.get((scan, chip, m)) for m in ("windows", "row copies", "XLA gather")]
        if None in found:
            continue
        for product in ("forward", "training"):
            ours, *others = (1e3 * row[product] for row in found if row)
            part = found[0][f"{product}_kernels"] / found[0][product]
            lines.append(
                f"| {scan} | {chip} | {product} | {ours:.2f} | {part:.0%} | {others[0]:.2f} "
                f"| {others[1]:.2f} | {1e3 * found[0][f'{product}_lower_bound']:.3f} "
                f"| {min(others) / ours:.1f} x |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the scans")
    parser.add_argument("--chips", nargs="*", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=list(SCANS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--anew", action="store_true", help="take again what is known")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "tpu_layers.json"
    for scan in arguments.scans:
        table = neighbors(cells(points(arguments.data, scan), VOXEL))
        for chip in arguments.chips:
            valid = {_case(row) for row in _known(kept)}
            asked = [
                method
                for method in arguments.methods
                if arguments.anew or (scan, chip, method) not in valid
            ]
            if not asked:
                continue
            new = measure(scan, table, chip, asked)
            _write(kept, new)
            print(table_of(new), flush=True)
    print(summary_of(_known(kept)))


def _known(kept: Path) -> list[dict[str, Any]]:
    """Rows of earlier runs, and of others that run now, but for those of other kernels."""
    rows = json.loads(kept.read_text()) if kept.exists() else []
    return [row for row in rows if row.get("code") == _digest(row["method"])]


def _write(kept: Path, new: list[dict[str, Any]]) -> None:
    """Among all rows, in order."""
    replaced = {_case(row) for row in new}
    rows = [row for row in _known(kept) if _case(row) not in replaced] + new
    rows.sort(key=lambda row: (SCANS.index(row["scan"]), list(TOPOLOGIES).index(row["chip"])))
    kept.write_text(json.dumps(rows, indent=1) + "\n")
    kept.with_suffix(".md").write_text(
        "# One layer on TPUs, predicted\n\nSee benchmarks/tpu/layers.py. Milliseconds.\n\n"
        f"{summary_of(rows)}\n\n{table_of(rows)}\n"
    )


if __name__ == "__main__":
    main()
