"""Pooling over whole scenes."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.dtypes import accumulator, limits, mean_of, product_dtype


def global_pool(
    voxels: Voxels, reduction: Literal["mean", "sum", "max", "min"] = "mean"
) -> jax.Array:
    """One feature row per scene; an empty scene gives zeros.

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
    zero = jnp.zeros((), dtype)
    if reduction in ("max", "min"):
        low, high = limits(dtype)
        x = jnp.where(voxels.valid[:, None], voxels.features, zero)
        if reduction == "max":
            best = jnp.full(shape, low, dtype).at[scene].max(x, mode="drop")
        else:
            best = jnp.full(shape, high, dtype).at[scene].min(x, mode="drop")
        return jnp.where(number[:, None] > 0, best, zero)
    if reduction not in ("mean", "sum"):
        raise InputError(f"unknown reduction {reduction!r}; known: mean, sum, max, min")
    wide = accumulator(dtype)
    x = jnp.where(voxels.valid[:, None], voxels.features.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros(shape, wide).at[scene].add(x, mode="drop")
    if reduction == "mean":
        return mean_of(total, jnp.maximum(number, 1).astype(wide)[:, None]).astype(dtype)
    return total.astype(product_dtype(dtype))
