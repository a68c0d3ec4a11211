"""Cycles of the window kernel for each output row of a LiDAR sweep, and what they may be.

    python benchmarks/tpu/budgets.py

One 3x3x3 submanifold layer of 64 channels, bfloat16, forward, on the recorded LiDAR scene that
comes with voxax. Cycles of the kernel alone, by the compiler's schedule; nothing runs.
Needs libtpu.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import options
from benchmarks.tpu.program import visits

from voxax.predict import count_all

BUDGETS = {"v5e": 7.8, "v6e": 5.6}
"""Cycles per output row that a test holds: the figures of this script and 5 % more."""


@functools.cache
def lidar_neighbors() -> np.ndarray:
    """``int32[N, 27]`` of the recorded sweep."""
    import voxax as vx
    from voxax.tuning.occupancy import recorded

    rows = recorded("lidar")
    coords = np.column_stack([np.zeros(len(rows), np.int32), rows])
    features = np.ones((len(rows), 1), np.float32)
    voxels = vx.Voxels.from_coords(coords, features, batch_size=1, capacity=len(rows))
    return np.asarray(vx.kernel_map(voxels, 3).neighbors)


def cycles_per_row(chips: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """By chip: cycles and issued bundles for each output row of the recorded sweep."""
    neighbors = lidar_neighbors()
    rows = len(neighbors)
    asked = [(chip, "benchmarks.tpu.program:product", {"rows": rows}) for chip in chips]
    found = {}
    for program in count_all(asked):
        passes = visits(program.chip.name, neighbors)
        cost = program.kernel().cost(program.chip, passes)
        found[program.chip.name] = cost.cycles / rows, cost.bundles / rows
    return found


def main() -> None:
    chips = tuple(options(__doc__, tuple(BUDGETS), anew=False).parse_args().chips)
    rows = [
        (chip, f"{cycles:.1f}", f"{bundles:.1f}", BUDGETS[chip])
        for chip, (cycles, bundles) in cycles_per_row(chips).items()
    ]
    print("\n".join(report.table(["chip", "cycles per row", "of them issued", "budget"], rows)))


if __name__ == "__main__":
    main()
