"""Convert coordinates to coarser lattices, and check their range."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.coords.lattice import COORD_LIMIT, PAD


def coarsen(coords: jax.Array, stride: Sequence[int]) -> jax.Array:
    """Return the coordinates ``int32[N, 1 + D]`` of the cells that contain the voxels ``coords``.

    A cell is a box with edges ``stride``. Its coordinates are ``floor(coords / stride)``. The batch
    index stays, and padding rows stay padding.
    """
    return jnp.where(coords[:, :1] == PAD, PAD, floor_divide(coords, (1, *stride)))


def place_in_cell(coords: jax.Array, stride: Sequence[int]) -> jax.Array:
    """Return ``int32[N]``, the index of each voxel within its cell, last axis fastest.

    Args:
      coords: ``int32[N, 1 + D]``.
      stride: D positive integers, the edges of a cell.
    """
    inside = (coords - coarsen(coords, stride) * jnp.asarray([[1, *stride]], jnp.int32))[:, 1:]
    steps = np.cumprod([1, *stride[:0:-1]], dtype=np.int32)[None, ::-1]
    return jnp.sum(inside * steps, axis=1, dtype=jnp.int32)


def in_range(coords: jax.Array) -> jax.Array:
    """Return ``bool[...]``: whether all of D coordinates are in ``[-COORD_LIMIT, COORD_LIMIT)``.

    ``coords`` are ``int32[..., D]``, without the batch index.
    """
    return jnp.all((coords >= -COORD_LIMIT) & (coords < COORD_LIMIT), axis=-1)


def floor_divide(coords: jax.Array, divisor: Sequence[int]) -> jax.Array:
    """Return ``floor(coords / divisor)`` for ``int32[..., len(divisor)]``.

    ``divisor`` is static and positive. Powers of two become shifts, because TPUs have no integer
    division: XLA emulates it, which for a batch of rows took 15,000 instructions and up to 25 s to
    compile.
    """
    shape = (1,) * (coords.ndim - 1) + (-1,)
    if all(d & (d - 1) == 0 for d in divisor):
        # This is right for negative numbers too: an arithmetic shift rounds down.
        shift = jnp.asarray([d.bit_length() - 1 for d in divisor], jnp.int32)
        return jnp.right_shift(coords, shift.reshape(shape))
    return jnp.floor_divide(coords, jnp.asarray(divisor, jnp.int32).reshape(shape))
