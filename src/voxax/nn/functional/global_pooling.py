"""Pooling over whole scenes."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.dtypes import accumulator, limits, mean_of, product_dtype
from voxax.geometry.halo import split_axis


def global_pool(
    voxels: Voxels, reduction: Literal["mean", "sum", "max", "min"] = "mean"
) -> jax.Array:
    """One feature row per scene; an empty scene gives zeros.

    Of a scene that is split over a mesh axis, each shard gets the row of the whole scene.

    Args:
      voxels: ``C`` channels.
      reduction: ``mean``, ``sum``, ``max`` or ``min``.

    Returns:
      ``[batch_size, C]`` in the features' dtype, summed in at least float32; sums of 8- and
      16-bit integers in int32, means of integers rounded down.

    Raises:
      InputError: an unknown reduction.
    """
    dtype = voxels.features.dtype
    scene = jnp.where(voxels.valid, voxels.coords[:, 0], voxels.batch_size)
    shape = (voxels.batch_size, voxels.num_channels)
    number = jnp.zeros((voxels.batch_size,), jnp.int32).at[scene].add(1, mode="drop")
    axis = split_axis(voxels)
    here = number > 0
    if axis is not None:
        number = jax.lax.psum(number, axis)
    zero = jnp.zeros((), dtype)
    if reduction in ("max", "min"):
        low, high = limits(dtype)
        x = jnp.where(voxels.valid[:, None], voxels.features, zero)
        if reduction == "max":
            start = jnp.full(shape, low, dtype)
            best = start.at[scene].max(x, mode="drop")
        else:
            start = jnp.full(shape, high, dtype)
            best = start.at[scene].min(x, mode="drop")
        if axis is not None:
            best = _best_of_shards(jnp.where(here[:, None], best, start), reduction, axis)
        return jnp.where(number[:, None] > 0, best, zero)
    if reduction not in ("mean", "sum"):
        raise InputError(f"unknown reduction {reduction!r}; known: mean, sum, max, min")
    wide = accumulator(dtype)
    x = jnp.where(voxels.valid[:, None], voxels.features.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros(shape, wide).at[scene].add(x, mode="drop")
    if axis is not None:
        total = jax.lax.psum(total, axis)
    if reduction == "mean":
        return mean_of(total, jnp.maximum(number, 1).astype(wide)[:, None]).astype(dtype)
    return total.astype(product_dtype(dtype))


def _best_of_shards(own: jax.Array, reduction: str, axis: str) -> jax.Array:
    """The largest (smallest) of all shards' values; equal ones share the gradient."""
    fixed = jax.lax.stop_gradient(own)
    best = (jax.lax.pmax if reduction == "max" else jax.lax.pmin)(fixed, axis)
    # NaN, which wins, is not equal to itself.
    mine = (fixed == best) | (fixed != fixed)
    wide = accumulator(own.dtype)
    total = jax.lax.psum(jnp.where(mine, own, jnp.zeros((), own.dtype)).astype(wide), axis)
    number = jax.lax.psum(mine.astype(wide), axis)
    return mean_of(total, jnp.maximum(number, 1)).astype(own.dtype)
