"""Between Voxels and dense grids ``[B, *shape, C]``."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.coords import PAD
from voxax.errors import InputError
from voxax.geometry.convert import from_coords
from voxax.geometry.halo import refuse_shard
from voxax.geometry.voxels import Voxels


def to_dense(
    voxels: Voxels, shape: Sequence[int] | None = None, origin: Sequence[int] | None = None
) -> jax.Array:
    """Scatter the features onto a dense grid; empty sites are zero.

    Args:
      voxels: the voxels.
      shape: D grid sizes; None takes the bounding box eagerly.
      origin: lattice coordinate of the grid's first cell; None takes the bounding box's
        corner when ``shape`` is None too, else zero. Voxels outside the grid are left out.

    Returns:
      ``[batch_size, *shape, C]``.

    Raises:
      InputError: ``shape`` is None under ``jax.jit``, or one shard of a scene.
    """
    refuse_shard(voxels, "to_dense()")
    if shape is None:
        if _compat.is_traced(voxels.coords):
            raise InputError("to_dense() under jax.jit needs shape=: the bounding box is data")
        rows = voxels.valid_coords()[:, 1:]
        low = rows.min(0) if len(rows) else np.zeros(voxels.geometry.ndim, np.int64)
        high = rows.max(0) + 1 if len(rows) else np.ones(voxels.geometry.ndim, np.int64)
        origin = [int(v) for v in (low if origin is None else origin)]
        shape = [max(int(h) - o, 1) for h, o in zip(high, origin, strict=True)]
    shape = tuple(int(s) for s in shape)
    corner = (0,) * len(shape) if origin is None else tuple(int(o) for o in origin)
    cell = voxels.coords[:, 1:] - jnp.asarray(corner, jnp.int32)[None, :]
    bound = jnp.asarray(shape, jnp.int32)[None, :]
    inside = voxels.valid & jnp.all((cell >= 0) & (cell < bound), axis=1)
    batch = jnp.where(inside, voxels.coords[:, 0], voxels.batch_size)
    grid = jnp.zeros((voxels.batch_size, *shape, voxels.num_channels), voxels.features.dtype)
    index = (batch, *(cell[:, axis] for axis in range(len(shape))))
    return grid.at[index].set(voxels.features, mode="drop")


def from_dense(
    dense: jax.Array, mask: jax.Array | None = None, *, capacity: int | None = None
) -> Voxels:
    """Voxels at the active sites of a dense grid.

    Args:
      dense: ``[B, *shape, C]``.
      mask: ``bool[B, *shape]``, active sites; None takes sites with any non-zero channel.
      capacity: static rows; None buckets eagerly and takes every site under ``jax.jit``.
    """
    if dense.ndim < 3:
        raise InputError(f"from_dense needs [B, *shape, C], got shape {dense.shape}")
    if mask is None:
        mask = jnp.any(dense != 0, axis=-1)
    index = jnp.indices(mask.shape, dtype=jnp.int32).reshape(mask.ndim, -1).T
    coords = jnp.where(mask.reshape(-1)[:, None], index, PAD)
    features = dense.reshape(-1, dense.shape[-1])
    return from_coords(coords, features, dense.shape[0], capacity=capacity)
