"""Pictures of docs/operators/elementwise.md."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import voxax as vx
from voxax.nn.functional import dropout
from voxax.nn.modules import Linear, ReLU, Remat, Sequential

from .panel import Panel
from .samples import shown, voxels_at

SITES = ((0, 1), (1, 1), (1, 2), (2, 2), (3, 2), (3, 3))


def mapped() -> list[Panel]:
    """One function on every feature."""
    voxels = voxels_at(SITES, [-3, 1, -1, 4, 2, -2])
    return [
        shown("voxels", voxels),
        shown("voxels.map(jax.nn.relu)", voxels.map(jax.nn.relu), sign="→"),
    ]


def added() -> list[Panel]:
    """A sum on one geometry."""
    a = voxels_at(SITES)
    b = a.replace_features(10 * a.features)
    return [shown("a", a), shown("b", b, sign="+"), shown("a + b", a + b, sign="→")]


def dropped() -> list[Panel]:
    """Draw what is dropped together."""
    coords = np.array([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], np.int32)
    voxels = vx.Voxels.from_coords(coords, np.ones((6, 4), np.float32), 2, capacity=6)
    panels = []
    for mode, seed in (("feature", 0), ("voxel", 0), ("channel", 0)):
        out = dropout(voxels, 0.5, jax.random.key(seed), mode)
        cells = [(scene, c, 2 - row) for scene, row in coords.tolist() for c in range(4)]
        panels.append(
            Panel(
                f'mode="{mode}"',
                cells,
                values=np.asarray(out.features).reshape(-1),
                labels="values",
                note="→ channels   ↓ voxels",
                extent=((0, 4), (0, 3)),
            )
        )
    return panels


def checkpointed() -> list[Panel]:
    """Feature arrays kept for the backward pass: one cell each."""
    voxels = voxels_at(SITES).map(lambda f: jnp.tile(f, (1, 4)))

    def kept(wrap: type | None) -> int:
        blocks = [Sequential(Linear(4, 4, rngs=nnx.Rngs(0)), ReLU()) for _ in range(4)]
        model = Sequential(*(wrap(block) if wrap else block for block in blocks))
        definition, state = nnx.split(model)

        def call(state: nnx.State, features: jax.Array) -> jax.Array:
            return nnx.merge(definition, state)(voxels.replace_features(features)).features

        _, backward = jax.vjp(call, state, voxels.features)
        return sum(leaf.shape == voxels.features.shape for leaf in jax.tree.leaves(backward))

    plain, checkpoints = kept(None), kept(Remat)
    box = ((0, plain), (0, 1))
    return [
        Panel("4 × (Linear, ReLU)", [(i, 0) for i in range(plain)], extent=box),
        Panel("each pair in Remat", [(i, 0) for i in range(checkpoints)], extent=box),
    ]


PICTURES = (mapped, added, dropped, checkpointed)
