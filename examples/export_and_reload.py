"""Write a trained network to one file, and run it without its code.

    python examples/export_and_reload.py --file street.voxax
    python examples/export_and_reload.py --file street.voxax --load

The second command runs the file alone: it needs JAX and voxax, and neither flax nor the network.
"""

import argparse
from pathlib import Path

import numpy as np

from voxax.export import export_program, load_program
from voxax.io.examples import Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep


def street(seed, radius):
    """A simulated sweep, prepared."""
    cloud = simulate_sweep(seed)
    return Preparation(0.5)(cloud.select(np.hypot(*cloud.positions[:, :2].T) < radius))


def trained(steps, radius):
    """A network after some steps on simulated streets, in evaluation mode."""
    import optax
    from flax import nnx

    from voxax.models.training import Trainer
    from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SubMConv3d

    rngs = nnx.Rngs(0)
    model = Sequential(
        SubMConv3d(5, 16, 3, rngs=rngs),
        BatchNorm(16),
        ReLU(),
        SubMConv3d(16, 16, 3, rngs=rngs),
        BatchNorm(16),
        ReLU(),
        Linear(16, len(CLASS_NAMES), rngs=rngs),
    )
    trainer = Trainer(model, optax.adam(1e-2))
    example = street(0, radius)
    for _ in range(steps):
        loss, _, _ = trainer.step(example.voxels, example.labels)
    print(f"loss after {steps} steps: {float(loss):.3f}")
    model = trainer.model()
    model.eval()
    return model


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=Path("street.voxax"))
    parser.add_argument("--load", action="store_true", help="run the file, and write nothing")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--radius", type=float, default=25.0, help="meters around the sensor")
    options = parser.parse_args(arguments)
    scene = street(1, options.radius)
    count = int(scene.voxels.count)
    coords = np.asarray(scene.voxels.coords)[:count]
    features = np.asarray(scene.voxels.features)[:count]

    if not options.load:
        model = trained(options.steps, options.radius)
        capacity = scene.voxels.capacity
        about = export_program(model, options.file, capacity=capacity, channels=5)
        print(f"{options.file}: {options.file.stat().st_size:,} bytes for {about['platform']}")
        expected = np.asarray(model(scene.voxels).features)[:count]
    program = load_program(options.file)
    logits = program(coords, features)
    right = logits.features[logits.rows].argmax(-1) == scene.labels[:count]
    print(f"{count} voxels, {right.mean():.0%} of them right")
    if not options.load:
        np.testing.assert_allclose(logits.features[logits.rows], expected, rtol=1e-4, atol=1e-4)
        print("the file gives the numbers of the network")
    return right.mean()


if __name__ == "__main__":
    main()
