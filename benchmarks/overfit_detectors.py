"""Let each kind of detector learn a few simulated scenes by heart: does everything it needs work?

    python benchmarks/overfit_detectors.py second centerpoint voxelnext

Widths, grid and region are reduced; cells, levels, targets, losses and decoding are those of
``voxax train``. Average precision is that of the scenes that it learned, so it should be near 1.
The results are in ``results/overfit_detectors.md``.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

from voxax.cli.folder_detection import FolderDetection
from voxax.cli.scenes import PrepareBatch
from voxax.detection import average_precision
from voxax.geometry import Plan
from voxax.io.simulator import simulate_objects

CLASSES = ("vehicle", "person")
SEEDS = (3, 4, 5)
NORM = {"epsilon": 1e-3, "momentum": 0.9}
BEV = {"layers": [2, 2], "channels": [32, 64], "up_channels": [32, 32]}
# Length, width, height and bottom above the ground, in meters; the ground is near 0 there.
ANCHORS = {
    "vehicle": [4.5, 1.8, 1.6, 0.0, 0.6, 0.45],
    "person": [0.6, 0.5, 1.7, 0.0, 0.4, 0.25],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "second": {"channels": [8, 16, 32, 32], "out_channels": 32, "bev": BEV, "anchors": ANCHORS},
    "centerpoint": {"channels": [8, 16, 32, 32], "residual": False, "shared": 32, "bev": BEV},
    "voxelnext": {"channels": [8, 16, 32, 32, 32], "out_channels": 32},
}
MOST_MINUTES = 20.0
GOAL = 0.9


def task_of(network: str, steps: int) -> FolderDetection:
    """Return the settings of one detector."""
    return FolderDetection(
        class_names=CLASSES,
        voxel_size=0.1,
        width=1.0,
        learning_rate=3e-3,
        steps=steps,
        network=network,
        bounds=(-12.8, -12.8, -0.6, 12.8, 12.8, 2.6),
        max_boxes=32,
        options={"norm": NORM, **OPTIONS[network]},
    )


def overfit(
    network: str, steps: int, every: int = 50, goal: float = GOAL
) -> tuple[dict[str, float], int, float, int]:
    """Return AP by class, the steps, seconds, and true boxes, once AP reaches the goal.

    Args:
      network: name of a detector.
      steps: most steps, which the schedule of the learning rate is made for.
      every: steps between evaluations.
      goal: AP of every class at an IoU of 0.5 of volumes.
    """
    task = task_of(network, steps)
    scans = tuple(simulate_objects(s, sensor="lidar64", min_points=20) for s in SEEDS)
    preparation = task.preparation()
    trainer, number = task.trainer(), len(scans)

    def batch(preparation: Any) -> Any:
        return PrepareBatch(scans, (None,) * number, preparation, 1, number)()

    bare = batch(preparation)
    model = nnx.merge(trainer._train_graph, trainer.params, trainer.state, copy=True)
    plan = Plan.record(model, bare.voxels).fitted([bare.voxels])
    example = batch(dataclasses.replace(preparation, plan=plan))
    begin, ap = time.perf_counter(), dict.fromkeys(CLASSES, 0.0)
    objects = sum(len(truth) for truth in example.truths)
    for step in range(1, steps + 1):
        loss, _, _ = trainer.step(example.voxels, example.labels)
        if step % every == 0 or step == steps:
            pairs = list(task.scenes(trainer, example))
            truth, found = (list(side) for side in zip(*pairs, strict=True))
            ap = average_precision(truth, found, iou_threshold=0.5, classes=CLASSES)
            seconds = time.perf_counter() - begin
            shown = ", ".join(f"{name} {value:.3f}" for name, value in ap.items())
            print(f"{network} step {step}: loss {float(loss):.4f}, AP {shown}, {seconds:.0f} s")
            if min(ap.values()) > goal or seconds > 60 * MOST_MINUTES:
                break
    return ap, step, time.perf_counter() - begin, objects


def main() -> None:
    parser = report.options(__doc__, out=False)
    parser.add_argument("networks", nargs="+", choices=sorted(OPTIONS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--goal", type=float, default=GOAL)
    given = parser.parse_args()
    rows = []
    for name in given.networks:
        ap, steps, seconds, objects = overfit(name, given.steps, goal=given.goal)
        values = [f"{ap[own]:.3f}" for own in CLASSES]
        rows.append([f"`{name}`", *values, objects, steps, f"{seconds:.0f}"])
    head = ["network", "AP of vehicles", "AP of persons", "true boxes", "steps", "seconds"]
    print("\n".join(report.table(head, rows)))


if __name__ == "__main__":
    main()
