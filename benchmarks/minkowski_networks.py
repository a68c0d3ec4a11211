"""MinkUNet34C on a CPU: voxax.torch.minkowski, voxax.torch.spconv and MinkowskiEngine.

    python benchmarks/minkowski_networks.py --data FOLDER [--minkowski PYTHON] [--rounds 7]

How contestants take turns stands in ``whole_networks.py``. They have the same coordinates and
weights. ``--minkowski`` is a Python in which MinkowskiEngine's CPU build is installed, which
then runs with one thread and with two.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.whole_networks import Times, compare, milliseconds, training_of

CHANNELS, CLASSES = 4, 13
CONTESTANTS = {
    "minkowski": ("minkowski", 2),
    "spconv door": ("spconv", 2),
    "MinkowskiEngine, 1 thread": ("MinkowskiEngine", 1),
    "MinkowskiEngine, 2 threads": ("MinkowskiEngine", 2),
}


def load(by: str, threads: int, network: str, cells: Any) -> tuple[Any, Any]:
    """Return both ways, and the function of the logits."""
    import torch
    from benchmarks import minkunet

    torch.set_num_threads(threads)
    rows, features = minkunet.inputs(cells, CHANNELS)
    model = minkunet.build(by, CHANNELS, CLASSES, *minkunet.MINKUNET34C)
    runs = training_of(model, lambda: minkunet.run(model, rows, features))
    return runs, lambda: minkunet.sorted_logits(model, rows, features)


def table(times: Times) -> list[str]:
    """Return the table, with a column for the ratio of the first two contestants."""
    lines = milliseconds(times, list(CONTESTANTS), "MinkUNet34C")
    ends = [" minkowski / spconv door |", "---:|"]
    for took in times.values():
        both = {"minkowski", "spconv door"} <= set(took)
        ends.append(f" {took['minkowski'] / took['spconv door']:.2f} |" if both else " |")
    return [line + end for line, end in zip(lines, ends, strict=True)]


if __name__ == "__main__":
    compare(
        __file__,
        __doc__,
        load,
        table,
        CONTESTANTS,
        ["MinkUNet34C"],
        out="minkowski",
        title="MinkUNet34C on a CPU",
        scans=["lidar_os0_128.npz:0.05"],
        peer=("MinkowskiEngine", "--minkowski"),
    )
