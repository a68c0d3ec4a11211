"""What would one layer take on TPUs, as window kernel, by XLA's gather, by copies of rows?

    python benchmarks/tpu/layers.py --data FOLDER

A 3x3x3 submanifold layer of 64 channels in bfloat16 on two real scans at 5 cm: forward, and
training (forward, dgrad and wgrad). Times are predicted from the TPU compiler's schedules
(voxax.forecast): whole programs, what XLA does before and after a kernel included; the kernel map
is not, nor are the lists that the copies of rows go by. Nothing runs.
The floor: operands and results once through HBM, or the products of neighbours at the peak rate.
Needs libtpu. Results go to results/tpu_layers.md and .json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.program import visits
from benchmarks.tpu.scans import cells, neighbors, points

from voxax.errors import VoxaxError
from voxax.forecast import TOPOLOGIES, Program, outcomes

RESULTS = Path(__file__).parents[1] / "results"
SCANS, VOXEL, CHANNELS, TILE = ("semantickitti", "lone_star"), 0.05, 64, 128
METHODS = {
    "windows": "benchmarks.tpu.program:product",
    "XLA gather": "benchmarks.tpu.baselines:xla",
    "row copies": "benchmarks.tpu.baselines:row_copies",
}
# dgrad of a submanifold layer is forward over the reversed taps.
TRAINING = {"forward": 2, "wgrad": 1}


def predicted(program: Program, method: str, table: np.ndarray) -> tuple[float, str]:
    """Seconds, and what bounds the dearest kernel."""
    number = 1.0
    if method == "windows":
        number = float(visits(program.chip.name, table))
    elif method == "row copies":
        number = float((table >= 0).sum() / -(-len(table) // TILE))
    passes = {kernel.name: number for kernel in program.kernels if kernel.is_pallas}
    costs = program.costs(passes)
    return program.seconds(passes), max(costs, key=lambda cost: cost.seconds).bound


def floors(program: Program, table: np.ndarray) -> tuple[float, float]:
    """Of forward, and of training."""
    chip, rows = program.chip, len(table)
    operations = 2 * int((table >= 0).sum()) * CHANNELS**2 / (chip.peak * chip.cores)
    moved = 2 * (2 * rows * CHANNELS + 27 * CHANNELS**2) / (chip.bandwidth * chip.cores)
    return max(operations, moved), 3 * max(operations, moved)


def measure(name: str, folder: Path, chips: list[str]) -> list[dict[str, Any]]:
    table = neighbors(cells(points(folder, name), VOXEL))
    cases = [(chip, method) for chip in chips for method in METHODS]
    asked = [
        (chip, METHODS[method], {"product": product, "rows": len(table)})
        for chip, method in cases
        for product in TRAINING
    ]
    outcome = iter(outcomes(asked))
    found = []
    for chip, method in cases:
        programs = {product: next(outcome) for product in TRAINING}
        row: dict[str, Any] = {"scan": name, "voxels": len(table), "chip": chip}
        row |= {"method": method}
        errors = [str(p) for p in programs.values() if isinstance(p, VoxaxError)]
        if errors:
            found.append(row | {"error": errors[0]})
            continue
        each = {p: predicted(program, method, table) for p, program in programs.items()}
        forward, training = floors(programs["forward"], table)
        row |= {
            "forward": each["forward"][0],
            "training": sum(times * each[p][0] for p, times in TRAINING.items()),
            "forward_floor": forward,
            "training_floor": training,
            "bound": each["forward"][1],
        }
        found.append(row)
        print(table_of([row]).splitlines()[-1], flush=True)
    return found


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| scan, voxels | chip | method | forward, ms | of the floor | training, ms "
        "| of the floor | bound |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for r in rows:
        head = f"| {r['scan']}, {r['voxels']:,} | {r['chip']} | {r['method']} "
        if "error" in r:
            lines.append(f"{head}| does not compile | | | | |")
            continue
        lines.append(
            f"{head}| {1e3 * r['forward']:.2f} | {r['forward'] / r['forward_floor']:.1f} x "
            f"| {1e3 * r['training']:.2f} | {r['training'] / r['training_floor']:.1f} x "
            f"| {r['bound']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the scans")
    parser.add_argument("--chips", nargs="*", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--scans", nargs="*", default=list(SCANS), choices=list(SCANS))
    arguments = parser.parse_args()
    rows = [r for scan in arguments.scans for r in measure(scan, arguments.data, arguments.chips)]
    RESULTS.mkdir(exist_ok=True)
    text = table_of(rows)
    (RESULTS / "tpu_layers.md").write_text(
        f"# One layer on TPUs, predicted\n\nSee benchmarks/tpu/layers.py.\n\n{text}\n"
    )
    (RESULTS / "tpu_layers.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
