"""Measure memory of a layer's forward and backward beyond inputs and outputs.

    python benchmarks/memory.py

One 3x3x3 submanifold layer, 32 channels, float32, in one program: forward, dgrad and wgrad. Two
numbers of voxels, each as LiDAR sweeps (5 of 27 neighbors) and as a solid block (nearly all).
Every row is a process of its own: its size is read before and, at its largest, during the first
run. Beside it, what the compiler says its temporary arrays take; kernels may allocate more. Linux.
Results go to results/memory.md and .json.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import in_own_process, peak_added_by
from benchmarks.workloads import lidar_tiles, problem_of, solid_block

CHANNELS = 32
VOXELS = (50_000, 200_000)
OCCUPANCIES = {"lidar": lidar_tiles, "block": solid_block}
# Part of the candidate's name, by what the table calls it.
CANDIDATES = {
    "native": "body=native",
    "XLA, pair lists": "formulation=pair_lists",
    "XLA, im2col": "formulation=im2col",
}


def one(voxels: int, occupancy: str, candidate: str) -> dict[str, Any]:
    """One row of the table."""
    import jax

    import voxax as vx
    from voxax.hardware import describe
    from voxax.kernels import names
    from voxax.tuning.sample import sample_of
    from voxax.tuning.space import Candidate, space_of

    coords = OCCUPANCIES[occupancy](voxels)
    geometry = vx.Voxels.from_coords(
        coords, np.ones((len(coords), 1), np.float32), batch_size=1, capacity=len(coords)
    )
    kernel_map = vx.kernel_map(geometry, 3)
    neighbors = np.asarray(kernel_map.neighbors)
    hardware = describe()
    problems = {p: problem_of(kernel_map, CHANNELS, p) for p in ("forward", "dgrad", "wgrad")}

    def chosen(product: Any) -> Candidate:
        space = space_of(problems[product], names("dense"), hardware)
        return next(c for c in space.candidates if CANDIDATES[candidate] in str(c))

    products = {p: (problem, chosen(p)) for p, problem in problems.items()}
    needed: dict[str, Any] = {}
    for p, c in products.values():
        needed.update(c.kernel.views_of(p, c.parameters))
    operands = {
        p: sample_of(products[p][0], {"neighbors": neighbors}, {}) for p in ("forward", "wgrad")
    }
    views = sample_of(products["forward"][0], {"neighbors": neighbors}, needed).views
    x, w, dy = operands["forward"].a, operands["forward"].b, operands["wgrad"].b
    del operands, geometry

    def step(x: Any, w: Any, dy: Any, views: Any) -> list[Any]:
        pairs = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}
        return [
            c.kernel.apply(p, c.parameters, *pairs[name], views)
            for name, (p, c) in products.items()
        ]

    program = jax.jit(step).lower(x, w, dy, views).compile()
    account = program.memory_analysis()
    added = peak_added_by(lambda: program(x, w, dy, views))
    return {
        "voxels": len(coords),
        "occupancy": occupancy,
        "candidate": candidate,
        "pairs": int((neighbors >= 0).sum()),
        "pair_rows_bytes": int((neighbors >= 0).sum()) * CHANNELS * 4,
        "input_bytes": account.argument_size_in_bytes,
        "output_bytes": account.output_size_in_bytes,
        "compiler_temporary_bytes": account.temp_size_in_bytes,
        "measured_temporary_bytes": added - account.output_size_in_bytes,
    }


def lines_of(values: dict[str, Any]) -> list[str]:
    rows = []
    for r in values["rows"]:
        kinds = ("pair_rows", "input", "output", "measured_temporary", "compiler_temporary")
        *mib, planned = [f"{r[f'{kind}_bytes'] / 2**20:.1f}" for kind in kinds]
        density = f"{r['pairs'] / r['voxels']:.1f}"
        case = (f"{r['voxels']:,}", r["occupancy"], density, r["candidate"])
        rows.append([*case, *mib, f"({planned})"])
    head = ["voxels", "occupancy", "pairs/voxel", "candidate", "rows of pairs", "inputs"]
    return [
        "# Memory of forward and backward",
        "",
        f"{values['device']}, JAX {values['jax']}. One 3x3x3 submanifold layer, "
        f"{CHANNELS} channels, float32: forward, dgrad and wgrad in one program, which starts in a "
        "process of its own. MiB. Inputs: features, gradients, weights and the map; outputs: "
        "results and both gradients. Temporary: what the process grew by at its peak beyond the "
        "outputs, and in brackets what the compiler plans. Rows of pairs: what a copy of the "
        "features of every pair would take.",
        "",
        *report.table([*head, "outputs", "temporary", "(compiler)"], rows, 4),
    ]


def main() -> None:
    options = report.options(__doc__).parse_args()
    rows = []
    for case in itertools.product(VOXELS, OCCUPANCIES, CANDIDATES):
        rows.append(in_own_process("memory", "one", *case))
        print(json.dumps(rows[-1]), flush=True)
    values = {**report.machine(), "channels": CHANNELS, "rows": rows}
    report.write(options.out, "memory", values, lines_of(values))


if __name__ == "__main__":
    main()
