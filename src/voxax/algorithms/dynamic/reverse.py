"""dX read from the input's side: each input position gathers the outputs that use it.

No position is written twice, unlike where outputs send (:mod:`.blocks`); but the taps that a
position gets something through are no prefix, since its neighbours' sizes decide.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.base import Problem
from voxax.algorithms.dynamic.grid import Grid, grid_of, ordered
from voxax.algorithms.rows import options
from voxax.geometry.dtypes import product_dtype


def dgrad(
    problem: Problem, dy: jax.Array, w: jax.Array, sizes: jax.Array, block: int, skip: bool
) -> jax.Array:
    """``[N, C_in]``; with ``skip``, blocks read no further than the largest size they see."""
    grid = grid_of(problem)
    rows = math.prod(grid.inputs)
    block = max(1, min(block, rows))
    blocks = -(-rows // block)
    source, seen, base, shifts = lattice(grid, dy, sizes)
    base = jnp.pad(base, (0, blocks * block - rows)).reshape(blocks, block)
    flat = jnp.swapaxes(ordered(grid, w), 1, 2).reshape(-1, w.shape[1])
    wide, kind, channels = options(problem, dy.dtype), product_dtype(dy.dtype), dy.shape[1]
    reach = jnp.asarray(grid.reach)[None, :]

    def branch(count: int):
        def body(index: jax.Array) -> jax.Array:
            taken = source.at[index[:, :count]].get(mode="promise_in_bounds")
            patches = taken.reshape(block, count * channels)
            return jnp.matmul(patches, flat[: count * channels], **wide).astype(kind)

        return body

    def one(centre: jax.Array) -> jax.Array:
        index = centre[:, None] + jnp.asarray(shifts)[None, :]
        active = seen.at[index].get(mode="promise_in_bounds") >= reach
        index = jnp.where(active, index, source.shape[0] - 1)
        if not skip:
            return branch(grid.counts[-1])(index)
        furthest = jnp.max(jnp.where(active, reach, 0))
        return jax.lax.switch(furthest, [branch(count) for count in grid.counts], index)

    out = jax.lax.map(one, base)
    return out.reshape(-1, w.shape[1])[:rows]


def lattice(
    grid: Grid, dy: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, np.ndarray]:
    """Outputs on the input's lattice, with a margin.

    Returns:
      Rows of ``dy`` with one of zeros behind them; sizes in the same rows, 0 where there is no
      output; ``int32[N]``, the row of each input position; ``int32[K]``, what each tap adds to it.
    """
    extents, steps = np.asarray(grid.outputs[1:]), np.asarray(grid.stride)
    low = np.maximum(0, grid.taps.max(0))
    last = np.asarray(grid.inputs[1:]) - 1 - grid.taps.min(0)
    high = np.maximum(0, last - (extents - 1) * steps)
    sides = [
        (0, 0, 0),
        *((int(a), int(b), int(s) - 1) for a, b, s in zip(low, high, steps, strict=True)),
    ]

    def spread(rows: jax.Array) -> jax.Array:
        rows = rows.reshape(*grid.outputs, *rows.shape[1:])
        every = sides + [(0, 0, 0)] * (rows.ndim - len(sides))
        return jax.lax.pad(rows, jnp.zeros((), rows.dtype), every)

    wide = spread(dy)
    shape = wide.shape[:-1]
    source = wide.reshape(-1, dy.shape[1])
    source = jnp.concatenate([source, jnp.zeros((1, dy.shape[1]), dy.dtype)])
    seen = spread(jnp.clip(sizes, 0, grid.largest)).reshape(-1)
    strides = np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])
    base = jnp.full((1,) * len(shape), int(strides[1:] @ low), jnp.int32)
    for axis, (extent, step) in enumerate(zip(grid.inputs, strides, strict=True)):
        along = jnp.arange(extent, dtype=jnp.int32) * np.int32(step)
        base = base + along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return source, seen, base.reshape(-1), (-(grid.taps @ strides[1:])).astype(np.int32)
