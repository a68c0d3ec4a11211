"""Train on several hosts: each process loads its own scenes, and all take the same steps.

    python examples/several_hosts.py                             # one process
    python examples/several_hosts.py --processes 2 --process 0   # the first of two
    python examples/several_hosts.py --processes 2 --process 1   # the second one

All give the address of the first process, and a folder for checkpoints that all of them see.
"""

import argparse

import jax
import numpy as np
import optax
from flax import nnx

import voxax as vx
from voxax.models.checkpoint import load_arrays, remove_steps_above, save_checkpoint
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SubMConv3d
from voxax.parallel import DataParallelTrainer, pack_scenes, places_of, shard_scenes


def load(index):
    """Stands for reading a scan."""
    rng = np.random.default_rng(index)
    positions = rng.uniform(-4, 4, (100 + 50 * index, 3)).astype(np.float32)
    positions[:, 2] *= 0.1
    voxels = vx.voxelize(positions, np.ones((len(positions), 1), np.float32), voxel_size=0.4)
    count = int(voxels.count)
    labels = np.full(voxels.capacity, -1)
    labels[:count] = np.asarray(voxels.coords)[:count, 1] > 0
    return voxels, labels


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="127.0.0.1:1234", help="of the first process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="the number of this one")
    parser.add_argument("--checkpoint", default="checkpoint", help="folder")
    options = parser.parse_args(arguments)
    folder = options.checkpoint
    if options.processes > 1:
        jax.distributed.initialize(
            options.address, options.processes, options.process, heartbeat_timeout_seconds=10
        )

    counts = [int(load(index)[0].count) for index in range(6)]  # of all scenes, from an index file
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    packing = pack_scenes(counts, len(jax.devices()))
    own, part = packing.part(places_of(mesh))
    scenes = [load(index) for index in own]
    voxels, known = shard_scenes([v for v, _ in scenes], part, labels=[rows for _, rows in scenes])

    rngs = nnx.Rngs(0)
    first, last = SubMConv3d(1, 8, 3, rngs=rngs), SubMConv3d(8, 2, 3, rngs=rngs)
    model = Sequential(first, BatchNorm(8), ReLU(), last)
    trainer = DataParallelTrainer(model, optax.adamw(1e-2), mesh)
    try:
        trainer.load_tree(load_arrays(folder, trainer.tree()))
        remove_steps_above(folder, trainer.steps)  # none, unless a newer one was damaged
    except vx.FileFormatError:
        pass  # none yet
    while trainer.steps < 6:
        loss, _, _ = trainer.step(voxels, known)
        print(trainer.steps, float(loss), flush=True)
        if trainer.steps % 3 == 0:
            save_checkpoint(folder, trainer.tree(), {}, trainer.steps)


if __name__ == "__main__":
    main()
