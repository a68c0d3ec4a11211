"""Pictures of docs/operators/pooling.md."""

import jax.numpy as jnp

import voxax as vx
from voxax.nn.functional import (
    channel_to_space,
    global_pool,
    max_pool,
    mean_pool,
    min_pool,
    space_to_channel,
    sum_pool,
    unpool,
)

from .panel import Panel
from .samples import shown, voxels_at

SMALL = ((0, 0), (0, 1), (1, 1), (2, 2), (3, 2), (3, 3))


def reductions() -> list[Panel]:
    """Draw the result of each pooling for one window."""
    voxels = voxels_at()
    panels = [shown("input", voxels, highlight=[(2, 2), (3, 2), (3, 3)])]
    for pool in (max_pool, min_pool, mean_pool, sum_pool):
        out = pool(voxels, kernel_size=2)
        panels.append(shown(pool.__name__, out, highlight=[(1, 1)]))
    return panels


def one_per_scene() -> list[Panel]:
    """Global pooling."""
    coords = [(0, 0, 0), (0, 1, 1), (0, 1, 2), (1, 0, 2), (1, 2, 0)]
    voxels = voxels_at(coords, batch_size=2)
    pooled = global_pool(voxels, "sum")
    rows, box = [(0, 1), (0, 0)], ((0, 1), (0, 2))
    out = Panel("[batch_size, C]", rows, values=pooled, labels="values", sign="→", extent=box)
    return [shown("input", voxels), out]


def unpooling() -> list[Panel]:
    """Back to the voxels that were pooled, with and without the indices of the maxima."""
    voxels = voxels_at()
    pooled, indices = max_pool(voxels, kernel_size=2, return_indices=True)
    return [
        shown("input", voxels),
        shown("max_pool", pooled),
        shown("unpool with indices", unpool(pooled, voxels, indices)),
        shown("unpool", unpool(pooled, voxels)),
    ]


def blocks() -> list[Panel]:
    """A block's voxels become channels."""
    voxels = voxels_at(SMALL)
    folded = space_to_channel(voxels, 2)
    panels = [shown("space", voxels)]
    for channel in range(4):
        part = folded.replace_features(folded.features[:, channel : channel + 1])
        panels.append(shown(f"channel {channel}", part, sign="↔" if channel == 0 else ""))
    return panels


def unfolded() -> list[Panel]:
    """channel_to_space onto given voxels, and onto every cell."""
    coarse = vx.kernel_map(voxels_at(SMALL), 2, 2).out_geometry
    numbers = jnp.arange(4 * coarse.capacity, dtype=jnp.float32).reshape(-1, 4)
    folded = vx.Voxels(coarse, numbers).replace_features(numbers)
    return [
        Panel("4 channels", folded, labels=["0 1 2 3", "4 5 6 7"]),
        shown("out_voxels given", channel_to_space(folded, 2, voxels_at(SMALL)), sign="→"),
        shown("every cell", channel_to_space(folded, 2)),
    ]


PICTURES = (reductions, one_per_scene, unpooling, blocks, unfolded)
