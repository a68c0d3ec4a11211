"""Pooling over whole scenes."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.dtypes import accumulator


def global_pool(voxels: Voxels, reduction: Literal["mean", "sum", "max"] = "mean") -> jax.Array:
    """One feature row per scene; an empty scene gives zeros.

    Args:
      voxels: ``C`` channels.
      reduction: ``mean``, ``sum`` or ``max``.

    Returns:
      ``[batch_size, C]`` in the features' dtype, summed in at least float32.
    """
    dtype = voxels.features.dtype
    scene = jnp.where(voxels.valid, voxels.coords[:, 0], voxels.batch_size)
    shape = (voxels.batch_size, voxels.num_channels)
    number = jnp.zeros((voxels.batch_size,), jnp.float32).at[scene].add(1.0, mode="drop")
    if reduction == "max":
        low = jnp.full(shape, -jnp.inf, dtype).at[scene].max(voxels.features, mode="drop")
        return jnp.where(number[:, None] > 0, low, jnp.zeros((), dtype))
    if reduction not in ("mean", "sum"):
        raise InputError(f"unknown reduction {reduction!r}; known: mean, sum, max")
    wide = accumulator(dtype)
    x = jnp.where(voxels.valid[:, None], voxels.features.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros(shape, wide).at[scene].add(x, mode="drop")
    if reduction == "mean":
        total = total / jnp.maximum(number.astype(wide), 1)[:, None]
    return total.astype(dtype)
