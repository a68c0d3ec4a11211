"""tiled: neighbouring positions share a block, which has the largest size among them.

Nothing is sorted: good where sizes are smooth, as a network's usually are, and memory is read in
order. The gradient of the input is gathered, tile by tile, and not sent.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.dynamic import blocks, masked, reverse
from voxax.algorithms.dynamic.grid import Grid, grid_of

FORMS: tuple[Parameters, ...] = ((("tile", 256),), (("tile", 1024),))


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: dict
) -> jax.Array:
    """See :class:`voxax.algorithms.base.Apply`; the view is ``sizes int32[M]``."""
    tile, sizes = int(dict(parameters)["tile"]), views["sizes"]
    if problem.product == "dgrad":
        return reverse.dgrad(problem, a, b, sizes, tile, skip=True)
    grid = grid_of(problem)
    return blocks.run(problem, a, b, sizes, tile_order(grid, tile), tile)


def tile_order(grid: Grid, tile: int) -> jax.Array | None:
    """``int32[M]``: output positions tile by tile; None where that is their own order.

    Tiles are boxes with equal sides of about ``tile`` positions. At the grid's borders a block
    runs over into the next tile.
    """
    ndim = len(grid.stride)
    if ndim == 1:
        return None
    side = max(1, round(tile ** (1 / ndim)))
    place = jnp.arange(grid.positions, dtype=jnp.int32)
    # The number of the tile as the leading key; positions within are in order already.
    number = jnp.zeros((1,) * (1 + ndim), jnp.int32)
    counts = [grid.outputs[0], *(-(-n // side) for n in grid.outputs[1:])]
    for axis, extent in enumerate(grid.outputs):
        step = np.int32(math.prod(counts[axis + 1 :]))
        along = jnp.arange(extent, dtype=jnp.int32) // np.int32(side if axis else 1) * step
        number = number + along.reshape([-1 if a == axis else 1 for a in range(1 + ndim)])
    return jax.lax.sort((number.reshape(-1), place), num_keys=1, is_stable=True)[1]


ALGORITHM = dataclasses.replace(
    masked.MASKED,
    name="tiled",
    space=lambda problem, hardware: FORMS,
    heuristic=lambda problem, hardware: FORMS[0],
    forms=FORMS,
    apply=apply,
)
