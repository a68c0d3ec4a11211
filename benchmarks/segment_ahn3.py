"""Ground, buildings and the rest of an airborne scan: MinkUNet against a network without
neighbors, at equal training time.

    python benchmarks/segment_ahn3.py --data FOLDER
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from segmentation import Task, arguments, compare, hold_out, minkunet, voxel_mlp, write

from voxax.cli.process import keep_heap
from voxax.io import PointCloud, read
from voxax.io.examples import Preparation
from voxax.io.ground import height_above_ground
from voxax.io.split import split_blocks

CLASS_NAMES = ("ground", "building", "other")
ASPRS = {2: 0, 6: 1}  # every other class is "other"
BLOCK, BUFFER = 10.0, 1.0


def load(
    folder: Path, voxel_size: float, crop_points: int, returns: bool
) -> tuple[Task, np.ndarray]:
    """The task, and the block that each training point lies in."""
    kinds = ("laz",) if returns else ("npz", "laz")
    found = [folder / f"air_ahn3_delft.{kind}" for kind in kinds]
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
    measured = _measured(cloud) if returns else {}
    cloud = PointCloud(positions, {"height": height, **measured}, labels)
    train, test = split_blocks(positions, BLOCK, BUFFER)
    block = np.floor((positions[:, :2] - positions[:, :2].min(0)) / BLOCK).astype(int)
    group = (block[:, 0] // 2 + 2 * block[:, 1])[train]
    return Task(
        "segment_ahn3" + "_returns" * returns,
        "AHN3, Delft: ground, building, other",
        (
            f"Alternating blocks of {BLOCK:g} m for training and testing, each less a margin of "
            f"{BUFFER:g} m: a test point is at least {2 * BUFFER:g} m from any training point.",
            f"{train.sum()} training and {test.sum()} test points of {len(positions)}.",
            f"Intensity and returns are given to {'both models' if returns else 'neither model'}.",
        ),
        cloud.select(train),
        cloud.select(test),
        CLASS_NAMES,
        (0, 1, 2),
        Preparation(voxel_size, tuple(measured)),
        crop_points,
    ), group


def _measured(cloud: PointCloud) -> dict[str, np.ndarray]:
    """Return the scanner's attributes of each return, scaled to about 0..1."""
    number, total = cloud.attributes["return_number"], cloud.attributes["number_of_returns"]
    return {
        "intensity": (np.log1p(cloud.attributes["intensity"]) / 8).astype(np.float32),
        "return": (number / np.maximum(total, 1)).astype(np.float32),
        "returns": (total / 5).astype(np.float32),
    }


def main() -> None:
    keep_heap()
    parser = arguments(__doc__ or "", seconds=70)
    parser.add_argument("--picture", type=Path, help="PNG of the first seed's test prediction")
    parser.add_argument(
        "--returns",
        action="store_true",
        help="give both models intensity and return numbers (needs the .laz file)",
    )
    options = parser.parse_args()
    task, group = load(
        options.data, options.voxel_size or 0.5, options.crop_points or 20_000, options.returns
    )
    if options.validate:
        task = hold_out(task, group)
    contenders = [
        minkunet(options.mink_rate or 6e-3),
        voxel_mlp(options.mlp_rate or 6e-3, options.mlp_width),
    ]
    contenders = [c for c in contenders if options.only in (None, c.name)]
    result = compare(task, contenders, seeds=range(options.seeds), seconds=options.seconds)
    if options.only:
        return
    write(result, options.out)
    if options.picture:
        from voxax.plot import segmentation_png

        first = result["runs"][0]
        segmentation_png(
            options.picture,
            task.test.positions,
            result["predictions"]["MinkUNet"],
            task.test.labels,
            CLASS_NAMES,
            title="MinkUNet on AHN3, Delft: test blocks",
            subtitle=f"{first['steps']} steps, {first['seconds']:.0f} s of training on the blocks "
            f"between; mIoU {first['miou']:.2f}",
            iou=first["iou"],
        )


if __name__ == "__main__":
    main()
