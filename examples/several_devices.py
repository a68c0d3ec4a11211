"""Train on several devices, here on host devices that share a CPU's cores.

    python examples/several_devices.py --devices 4

Scenes of different size are packed onto the devices by their voxels; loss, gradient and batch
statistics are those of all scenes. The same program runs on the devices of a TPU host or on GPUs,
though nothing here was run on either.
"""

import argparse

import jax
import numpy as np
import optax
from flax import nnx

from voxax.io.examples import Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep
from voxax.models import MinkUNet14
from voxax.parallel import DataParallelTrainer, pack_scenes, shard_scenes


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--scenes", type=int, default=6)
    parser.add_argument("--radius", type=float, default=25.0, help="meters around the sensor")
    parser.add_argument("--width", type=float, default=0.25, help="factor on all channels")
    options = parser.parse_args(arguments)
    if jax.config.jax_platforms == "cpu":  # host devices, counted once, when JAX starts
        jax.config.update("jax_num_cpu_devices", options.devices)
    devices = jax.devices()[: options.devices]
    mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)

    prepare = Preparation(voxel_size=0.5)
    clouds = [simulate_sweep(seed) for seed in range(options.scenes)]
    near = [c.select(np.hypot(*c.positions[:, :2].T) < options.radius) for c in clouds]
    examples = [prepare(cloud) for cloud in near]
    counts = [int(e.voxels.count) for e in examples]

    model = MinkUNet14(
        prepare.num_channels, len(CLASS_NAMES), width=options.width, rngs=nnx.Rngs(0)
    )
    packing = pack_scenes(counts, len(devices))
    print(packing)
    trainer = DataParallelTrainer(model, optax.adamw(3e-3), mesh)
    scenes, labels = [e.voxels for e in examples], [e.labels for e in examples]
    voxels, known = shard_scenes(scenes, packing, labels=labels)

    losses = []
    for step in range(options.steps):
        loss, _, dropped = trainer.step(voxels, known)
        losses.append(float(loss))
        assert int(dropped) == 0
        if step % 5 == 0 or step + 1 == options.steps:
            print(f"step {step}: loss {losses[-1]:.4f} on {len(devices)} devices", flush=True)
    return losses


if __name__ == "__main__":
    main()
