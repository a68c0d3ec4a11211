"""The common classes of one SemanticKITTI sweep: MinkUNet against a network without
neighbors, at equal training time.

    python benchmarks/segment_semantickitti.py --data FOLDER
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from segmentation import Task, run

from voxax.io import PointCloud, read
from voxax.io.examples import Preparation
from voxax.io.ground import height_above_ground
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES, to_common_classes
from voxax.io.split import split_sectors

# Narrow enough that every larger class lies in both parts.
SECTORS, BUFFER = 24, 0.5


def load(folder: Path, voxel_size: float, crop_points: int) -> tuple[Task, np.ndarray]:
    """The task, and the sector that each training point lies in."""
    stem = folder / "nc" / "semantickitti_00_000000"
    if not stem.with_suffix(".bin").exists():
        raise SystemExit(f"{stem}.bin does not exist: give --data FOLDER")
    cloud = read(stem.with_suffix(".bin"), labels=stem.with_suffix(".label"))
    common = to_common_classes(cloud.labels)
    present = np.unique(common[common >= 0])
    labels = np.where(common >= 0, np.searchsorted(present, common), -1)
    names = tuple(SEMANTIC_KITTI_CLASS_NAMES[i] for i in present)
    height = height_above_ground(cloud.positions)
    intensity = cloud.attributes["intensity"].astype(np.float32)
    cloud = PointCloud(cloud.positions, {"height": height, "intensity": intensity}, labels)
    train, test = split_sectors(cloud.positions, SECTORS, BUFFER)
    angle = np.arctan2(cloud.positions[:, 1], cloud.positions[:, 0]) + np.pi
    group = (np.floor(angle / (2 * np.pi / SECTORS)).astype(int) // 2)[train]
    in_both = np.intersect1d(labels[train], labels[test])
    return Task(
        "segment_semantickitti",
        "SemanticKITTI, sequence 00, sweep 0",
        (
            f"{SECTORS} alternating azimuth sectors for training and testing, less {BUFFER:g} m "
            f"on each side of a border: a test point is at least {2 * BUFFER:g} m from any "
            "training point.",
            f"{train.sum()} training and {test.sum()} test points of {len(cloud)}; "
            f"{len(names)} of the 19 common classes occur.",
        ),
        cloud.select(train),
        cloud.select(test),
        names,
        tuple(int(i) for i in in_both if i >= 0),
        Preparation(voxel_size, ("intensity",)),
        crop_points,
    ), group


if __name__ == "__main__":
    run(__doc__, load, seconds=60, crop=100_000, voxel_size=0.3)
