"""Train a MinkUNet on a folder of labeled scans, and print the IoU of every class.

    python examples/segment_folder.py SemanticKITTI --format semantic_kitti --voxel-size 0.1
    python examples/segment_folder.py ScanNet --format scannet --train train.txt \\
        --validation val.txt --voxel-size 0.05

`voxax train` does the same with augmentation, several devices and checkpoints; this is what is
inside, without them.
"""

import argparse
from pathlib import Path

import numpy as np
import optax
from flax import nnx

import voxax as vx
from voxax.io.dataset import dataset
from voxax.io.examples import Preparation
from voxax.models import MinkUNet14
from voxax.models.metrics import confusion, iou_table, mean_iou
from voxax.models.training import Trainer


def names(value):
    """Sequences or scenes: a text file with one on each line, or their names with commas."""
    if value is None:
        return None
    path = Path(value)
    return path.read_text().split() if path.is_file() else value.split(",")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--format", choices=["semantic_kitti", "scannet"], required=True)
    parser.add_argument("--train", help="names with commas, or a file; SemanticKITTI has its own")
    parser.add_argument("--validation")
    parser.add_argument("--voxel-size", type=float, required=True, help="meters")
    parser.add_argument("--width", type=float, default=1.0, help="factor on all channels")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args(arguments)

    scans = dataset(options.format, options.folder, names(options.train), names(options.validation))
    attributes = ("intensity",) if options.format == "semantic_kitti" else ("rgb",)
    prepare = Preparation(options.voxel_size, attributes)
    classes = len(scans.class_names)
    model = MinkUNet14(prepare.num_channels, classes, width=options.width, rngs=nnx.Rngs(0))

    # The sizes of all levels, from a few scans and with a margin: few compiled programs run all
    # scans. One that needs more rows compiles another.
    some = (*scans.train[:8], *scans.validation[:8])
    samples = [prepare(scan()).voxels for scan in some]
    plan = vx.Plan.record(model, samples[0]).fitted(samples, margin=1.3)
    prepare = Preparation(options.voxel_size, attributes, plan=plan)

    schedule = optax.cosine_onecycle_schedule(max(options.steps, 2), 6e-3)
    trainer = Trainer(model, optax.adamw(schedule))
    rng = np.random.default_rng(0)
    for step in range(options.steps):
        example = prepare(scans.train[rng.integers(len(scans.train))]())
        loss, _, _ = trainer.step(example.voxels, example.labels)
        if step % 100 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)

    matrix = np.zeros((classes, classes), np.int64)
    for scan in scans.validation:
        example = prepare(scan())
        prediction = trainer.logits(example.voxels).argmax(-1)[example.inverse]
        matrix += confusion(example.point_labels, prediction, classes)
    for name, iou in iou_table(matrix, scans.class_names).items():
        print(f"{name:>20}  {'-' if iou is None else f'{iou:.3f}'}")
    print(f"{'mean':>20}  {mean_iou(matrix):.3f}")
    return matrix


if __name__ == "__main__":
    main()
