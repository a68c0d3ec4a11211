"""Complete shapes that were seen from above only, with generative transposed convolutions.

    python examples/complete_shapes.py --steps 400

An encoder takes what was seen to a lattice of 4 x 4 x 4. A generative convolution grows the voxels
there, and generative transposed convolutions give every voxel eight children, of which the network
keeps those that it takes for a part of the shape. All levels have static capacities: one compiled
program. The idea is that of Gwak, Choy and Savarese, "Generative sparse detection networks for 3D
single-shot object detection", 2020.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import voxax as vx
from voxax.nn.modules import Linear, SparseConv3d, SparseConvTranspose3d, SubMConv3d

SIZE = 32
CHANNELS = (16, 32, 48, 64)  # at strides 1, 2, 4, 8
CAPACITY = (6144, 2048, 768, 256)  # voxels that are kept there, of each scene


def shape(rng):
    """Voxels ``[N, 3]`` of the surface of an ellipsoid, turned around the vertical."""
    points = rng.normal(size=(20_000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    angle = rng.uniform(0, np.pi)
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    points = points * rng.uniform(4, 12, 3) @ turn + SIZE / 2 + rng.uniform(-2, 2, 3)
    return np.unique(np.floor(points).astype(np.int32), axis=0)


def example(rng):
    """``(the upper half, which was seen, and the whole)`` as voxels of one feature, 1."""
    whole = shape(rng)
    above = whole[:, 2] - whole[:, 2].mean()
    return tuple(
        vx.Voxels.from_coords(
            np.column_stack([np.zeros(len(part), np.int32), part]),
            np.ones((len(part), 1), np.float32),
            capacity=CAPACITY[0],
        )
        for part in (whole[above > 0], whole)
    )


class Completion(nnx.Module):
    def __init__(self, rngs):
        c = CHANNELS
        self.stem = SubMConv3d(1, c[0], 3, rngs=rngs)
        self.down = nnx.List(
            SparseConv3d(c[i], c[i + 1], 2, stride=2, capacity=CAPACITY[i + 1], rngs=rngs)
            for i in range(3)
        )
        # Reaches the 26 neighbors: what was not seen is not far on this lattice. It has 216 cells.
        self.grow = SparseConv3d(c[3], c[3], 3, generative=True, capacity=CAPACITY[3], rngs=rngs)
        self.mix = nnx.List(SubMConv3d(c[3], c[3], 3, rngs=rngs) for _ in range(2))
        self.up = nnx.List(
            SparseConvTranspose3d(
                c[i + 1], c[i], 2, generative=True, capacity=8 * CAPACITY[i + 1], rngs=rngs
            )
            for i in range(3)
        )
        self.look = nnx.List(SubMConv3d(c[i], c[i], 3, rngs=rngs) for i in range(3))
        self.heads = nnx.List(Linear(c[i], 1, rngs=rngs) for i in range(3))

    def __call__(self, seen, whole=None):
        """``(voxels of the completed shape, loss)``; with ``whole`` exactly its voxels are kept."""
        x = self.stem(seen).map(jax.nn.relu)
        skips = [x]
        for layer in self.down:
            x = layer(x).map(jax.nn.relu)
            skips.append(x)
        x = self.grow(x).map(jax.nn.relu)
        for layer in self.mix:
            x = layer(x).map(jax.nn.relu)
        loss = 0.0
        for level in (2, 1, 0):
            x = self.up[level](x)
            x = x.replace_features(x.features + vx.inject(skips[level], x).features)
            x = self.look[level](x.map(jax.nn.relu)).map(jax.nn.relu)
            score = self.heads[level](x).features[:, 0]
            keep = score > 0
            if whole is not None:
                part = vx.coarsen(whole, 2**level, reduction="max") if level else whole
                true = vx.inject(part, x).features[:, 0] > 0
                valid = jnp.arange(x.capacity) < x.count
                wrong = optax.sigmoid_binary_cross_entropy(score, true.astype(score.dtype))
                loss += jnp.sum(jnp.where(valid, wrong, 0)) / jnp.maximum(x.count, 1)
                keep = true
            x = vx.prune(x, keep, capacity=CAPACITY[level])
        return x, loss


def iou(found, whole):
    """Intersection over union of two sets of voxels."""
    a, b = (set(map(tuple, v.valid_coords().tolist())) for v in (found, whole))
    return len(a & b) / len(a | b)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--shapes", type=int, default=256, help="to learn from")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    shapes = [example(rng) for _ in range(options.shapes)]
    unseen = [example(rng) for _ in range(8)]

    graph, params = nnx.split(Completion(nnx.Rngs(0)))
    optimizer = optax.adam(3e-3)

    @jax.jit
    def step(params, state, seen, whole):
        def loss_of(params):
            found, loss = nnx.merge(graph, params)(seen, whole)
            return loss, found.num_dropped

        (loss, dropped), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, loss, dropped

    complete = jax.jit(lambda params, seen: nnx.merge(graph, params)(seen)[0])
    state, losses = optimizer.init(params), []
    for number in range(options.steps):
        seen, whole = shapes[rng.integers(len(shapes))]
        params, state, loss, dropped = step(params, state, seen, whole)
        losses.append(float(loss))
        assert int(dropped) == 0  # overflow is counted, never silent
        if number % 50 == 0 or number + 1 == options.steps:
            print(f"step {number}: loss {losses[-1]:.3f}", flush=True)
    before = np.mean([iou(seen, whole) for seen, whole in unseen])
    after = np.mean([iou(complete(params, seen), whole) for seen, whole in unseen])
    # A network that keeps too much exceeds the capacity: that is counted, too.
    lost = max(int(complete(params, seen).num_dropped) for seen, _ in unseen)
    print(f"voxels lost to the capacity in one scene, at most: {lost}")
    print(f"IoU with the whole: {before:.2f} of what was seen, {after:.2f} of what was completed")
    return losses, before, after


if __name__ == "__main__":
    main()
