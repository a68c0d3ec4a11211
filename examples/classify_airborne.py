"""Ground, building or neither: a class for every voxel of an airborne scan.

    python examples/classify_airborne.py survey.laz --voxel-size 0.5 --out classified.ply

The scan needs ASPRS labels (2 ground, 6 building). Blocks of 10 m, like the white squares of a
chessboard, are learned from, and the black ones, less a margin, tell how well that went.
"""

import argparse
from pathlib import Path

import numpy as np
import optax
from flax import nnx

import voxax as vx
from voxax.io import PointCloud, read, write_ply
from voxax.io.augment import flip, rotate_z
from voxax.io.examples import Preparation
from voxax.io.ground import height_above_ground
from voxax.io.split import split_blocks
from voxax.models import MinkUNet14
from voxax.models.metrics import confusion, iou_table
from voxax.models.training import Trainer

CLASS_NAMES = ("ground", "building", "other")
ASPRS = {2: 0, 6: 1}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--voxel-size", type=float, default=0.5, help="in the file's unit")
    parser.add_argument("--width", type=float, default=0.5, help="factor on all channels")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("classified.ply"))
    options = parser.parse_args(arguments)

    cloud = read(options.file)
    labels = np.full(len(cloud), 2)
    for asprs, index in ASPRS.items():
        labels[cloud.labels == asprs] = index
    # National grid coordinates: only differences matter here.
    positions = cloud.positions - np.floor(cloud.positions.min(0))
    # Of the whole scan: ground beside a building tells how high its roof is.
    height = height_above_ground(positions)
    cloud = PointCloud(positions, {"height": height}, labels)
    train, test = map(cloud.select, split_blocks(positions))

    rng = np.random.default_rng(0)
    prepare = Preparation(options.voxel_size)
    turned = [flip(rotate_z(train, rng), rng) for _ in range(8)]
    drafts = [prepare(c, c.attributes["height"]).voxels for c in (*turned, test, cloud)]
    model = MinkUNet14(prepare.num_channels, 3, width=options.width, rngs=nnx.Rngs(0))
    plan = vx.Plan.record(model, drafts[0]).fitted(drafts, margin=1.1)
    rows = max(v.capacity for v in drafts[:-1])
    prepare = Preparation(options.voxel_size, plan=plan, min_capacity=rows)
    examples = [prepare(c, c.attributes["height"]) for c in turned]

    schedule = optax.cosine_onecycle_schedule(max(options.steps, 2), 6e-3)
    trainer = Trainer(model, optax.adamw(schedule))
    for step in range(options.steps):
        example = examples[rng.integers(len(examples))]
        loss, _, _ = trainer.step(example.voxels, example.labels)
        if step % 25 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {float(loss):.3f}", flush=True)

    example = prepare(test, test.attributes["height"])
    prediction = trainer.logits(example.voxels).argmax(-1)[example.inverse]
    matrix = confusion(test.labels, prediction, 3)
    print("IoU in the blocks that were left out:", iou_table(matrix, CLASS_NAMES))

    whole = prepare(cloud, height)
    classes = trainer.logits(whole.voxels).argmax(-1)[whole.inverse].astype(np.int32)
    write_ply(options.out, positions, labels=classes)
    print(f"wrote {options.out}")
    return matrix


if __name__ == "__main__":
    main()
