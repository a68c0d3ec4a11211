"""Ground, buildings and the rest of an airborne scan: MinkUNet against a network without
neighbors, at equal training time.

    python benchmarks/segment_ahn3.py --data FOLDER
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from segmentation import Task, run

from voxax.io import PointCloud, read
from voxax.io.examples import Preparation
from voxax.io.ground import height_above_ground
from voxax.io.split import split_blocks

CLASS_NAMES = ("ground", "building", "other")
ASPRS = {2: 0, 6: 1}  # every other class is "other"
BLOCK, BUFFER = 10.0, 1.0


def load(folder: Path, voxel_size: float, crop_points: int) -> tuple[Task, np.ndarray]:
    """The task, and the block that each training point lies in."""
    found = [folder / f"air_ahn3_delft.{kind}" for kind in ("npz", "laz")]
    path = next((p for p in found if p.exists()), None)
    if path is None:
        raise SystemExit(f"no {' or '.join(map(str, found))}: give --data FOLDER")
    cloud = read(path)
    labels = np.full(len(cloud), 2)
    for asprs, index in ASPRS.items():
        labels[cloud.labels == asprs] = index
    # National grid coordinates: only differences matter here.
    positions = cloud.positions - np.floor(cloud.positions.min(0))
    # On the whole scan: the opening needs ground around a building to see below it.
    height = height_above_ground(positions)
    cloud = PointCloud(positions, {"height": height}, labels)
    train, test = split_blocks(positions, BLOCK, BUFFER)
    block = np.floor((positions[:, :2] - positions[:, :2].min(0)) / BLOCK).astype(int)
    group = (block[:, 0] // 2 + 2 * block[:, 1])[train]
    return Task(
        "segment_ahn3",
        "AHN3, Delft: ground, building, other",
        (
            f"Alternating blocks of {BLOCK:g} m for training and testing, each less a margin of "
            f"{BUFFER:g} m: a test point is at least {2 * BUFFER:g} m from any training point.",
            f"{train.sum()} training and {test.sum()} test points of {len(positions)}.",
            "Intensity and returns are given to neither model.",
        ),
        cloud.select(train),
        cloud.select(test),
        CLASS_NAMES,
        (0, 1, 2),
        Preparation(voxel_size),
        crop_points,
    ), group


def picture(path: Path, task: Task, first: dict[str, Any]) -> None:
    """Draw the first seed's prediction of the test blocks."""
    from voxax.plot import segmentation_png

    segmentation_png(
        path,
        task.test.positions,
        first["labels"],
        task.test.labels,
        CLASS_NAMES,
        title="MinkUNet on AHN3, Delft: test blocks",
        subtitle=f"{first['steps']} steps, {first['seconds']:.0f} s of training on the blocks "
        f"between; mIoU {first['miou']:.2f}",
        iou=first["iou"],
    )


if __name__ == "__main__":
    run(__doc__, load, seconds=70, crop=20_000, voxel_size=0.5, picture=picture)
