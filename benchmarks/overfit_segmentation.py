"""Let PTv3 learn labeled scans by heart: do its training, labels and evaluation work?

    python benchmarks/overfit_segmentation.py --data FOLDER

Depths and widths are reduced, and of each scan a square is taken; levels, curves, loss and decoding
are those of ``voxax train``. The mean IoU is that of the points that it learned, so it should be
near 1. Points in one voxel get one class, which bounds it: the bound stands beside it.
The results are in ``results/overfit_segmentation.md``.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

from voxax.cli.segmentation_task import Segmentation, class_weights
from voxax.geometry import Plan
from voxax.io import PointCloud, read, read_labels
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES, to_common_classes
from voxax.io.simulator import CLASS_NAMES, simulate_sweep

NETWORK = "ptv3-base"
OPTIONS: dict[str, Any] = {
    "encoder_depths": [1, 1, 1, 1],
    "encoder_channels": [32, 48, 64, 96],
    "encoder_num_heads": [2, 3, 4, 6],
    "decoder_depths": [1, 1, 1],
    "decoder_channels": [64, 48, 48],
    "decoder_num_heads": [4, 3, 3],
    "strides": [2, 2, 2],
    "patch_size": 128,
    "drop_path": 0.0,  # it regularizes, which is not wanted here
    "norm_momentum": 0.9,  # the statistics follow within tens of steps
}
LEAST_POINTS = 100  # of a class that counts
MOST_MINUTES = 20.0
GOAL = 0.95


@dataclasses.dataclass(frozen=True)
class Sample:
    """A square of a labeled scan.

    Attributes:
      name: what the table calls it.
      file: in the folder of scans; empty for a simulated street of seed 3.
      classes: names by the ids of the labels.
      middle: x and y, in the unit of the positions, from the scan's lowest corner unless near 0.
      edge: of the square; same unit.
      voxel_size: same unit.
    """

    name: str
    file: str
    classes: dict[int, str]
    middle: tuple[float, float]
    edge: float
    voxel_size: float

    def cloud(self, folder: Path) -> tuple[PointCloud, tuple[str, ...]]:
        """The points with labels of the classes that occur, and their names."""
        whole = read(folder / self.file) if self.file else simulate_sweep(3, sensor="lidar64")
        labels = whole.labels
        if self.file.endswith(".bin"):
            labels = to_common_classes(read_labels((folder / self.file).with_suffix(".label")))
        assert labels is not None
        positions = whole.positions
        if np.abs(positions).max() > 500:  # national grids
            positions = positions - np.floor(positions.min(0))
        inside = (np.abs(positions[:, :2] - self.middle) < self.edge / 2).all(axis=1)
        positions, labels = positions[inside], labels[inside]
        known = [i for i in self.classes if (labels == i).sum() >= LEAST_POINTS]
        own = np.full(len(labels), -1, np.int32)
        for index, given in enumerate(known):
            own[labels == given] = index
        return PointCloud(positions, {}, own), tuple(self.classes[i] for i in known)


ASPRS = {1: "other", 2: "ground", 6: "building", 9: "water", 26: "structure"}
SAMPLES = (
    Sample(
        "SemanticKITTI, sequence 00, sweep 0",
        "nc/semantickitti_00_000000.bin",
        dict(enumerate(SEMANTIC_KITTI_CLASS_NAMES)),
        (16.0, -12.0),
        16.0,
        0.1,
    ),
    Sample("AHN3, Delft", "air_ahn3_delft.laz", ASPRS, (20.0, 20.0), 40.0, 0.5),
    Sample("Autzen, in feet", "air_autzen_trim.las", ASPRS, (600.0, 280.0), 160.0, 1.0),
    Sample("simulated street", "", dict(enumerate(CLASS_NAMES)), (0.0, 0.0), 20.0, 0.1),
)


def overfit(
    sample: Sample, folder: Path, steps: int, every: int = 25, goal: float = GOAL
) -> dict[str, Any]:
    """Return a row of the table, once the mean IoU of all points reaches the goal.

    Args:
      sample: what is learned.
      folder: of the scans.
      steps: most steps, which the schedule of the learning rate is made for.
      every: steps between evaluations.
      goal: mean IoU.
    """
    cloud, names = sample.cloud(folder)
    task = Segmentation(
        class_names=names,
        voxel_size=sample.voxel_size,
        width=1.0,
        learning_rate=3e-3,
        steps=steps,
        network=NETWORK,
        options=OPTIONS,
        class_weights=class_weights([cloud], len(names)),
    )
    preparation, trainer = task.preparation(), task.trainer()
    bare = preparation(cloud)
    model = nnx.merge(trainer._train_graph, trainer.params, trainer.state, copy=True)
    plan = Plan.record(model, bare.voxels).fitted([bare.voxels])
    example = dataclasses.replace(preparation, plan=plan)(cloud)
    bound = task.score()
    bound.add(example.point_labels, example.labels[example.inverse])
    begin, miou, step = time.perf_counter(), 0.0, 0
    for step in range(1, steps + 1):
        loss, _, _ = trainer.step(example.voxels, example.labels)
        if step % every == 0 or step == steps:
            score = task.score()
            for truth, found in task.scenes(trainer, example):
                score.add(truth, found)
            miou, seconds = score.value(), time.perf_counter() - begin
            print(
                f"{sample.name}, step {step}: loss {float(loss):.4f}, mIoU {miou:.4f}, "
                f"{seconds:.0f} s",
                flush=True,
            )
            if miou > goal or seconds > 60 * MOST_MINUTES:
                break
    return {
        "sample": sample.name,
        "classes": len(names),
        "points": f"{len(cloud):,}",
        "voxels": f"{int(example.voxels.count):,}",
        "voxel size": f"{sample.voxel_size:g}",
        "mIoU": f"{miou:.3f}",
        "bound": f"{bound.value():.3f}",
        "steps": step,
        "seconds": f"{time.perf_counter() - begin:.0f}",
    }


def main() -> None:
    parser = report.options(__doc__, data=True, out=False)
    parser.add_argument("--only", default="", help="a word in the name of the samples to take")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    chosen = [s for s in SAMPLES if given.only in s.name]
    rows = [overfit(sample, given.data, given.steps) for sample in chosen]
    print("\n".join(report.table(list(rows[0]), [list(row.values()) for row in rows])))


if __name__ == "__main__":
    main()
