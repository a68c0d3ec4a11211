"""Normalisation that does not see padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.geometry import Voxels
from voxax.geometry.dtypes import accumulator


def masked_moments(
    features: jax.Array, valid: jax.Array, axis_name: str | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and (biased) variance of the valid rows, in float32 or wider.

    Args:
      features: ``[N, C]``; rows that are not valid may hold anything.
      valid: ``bool[N]``.
      axis_name: also reduce over this mapped axis.

    Returns:
      ``(mean [C], variance [C], number [])``; zeros where no row is valid.
    """
    wide = accumulator(features.dtype)
    x = jnp.where(valid[:, None], features.astype(wide), jnp.zeros((), wide))
    number = jnp.sum(valid, dtype=wide)
    total = jnp.sum(x, axis=0)
    if axis_name is not None:
        number, total = jax.lax.psum((number, total), axis_name)
    mean = total / jnp.maximum(number, 1)
    centred = jnp.where(valid[:, None], x - mean[None, :], jnp.zeros((), wide))
    squares = jnp.sum(centred * centred, axis=0)
    if axis_name is not None:
        squares = jax.lax.psum(squares, axis_name)
    return mean, squares / jnp.maximum(number, 1), number


def normalize(
    voxels: Voxels,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    epsilon: float = 1e-5,
) -> Voxels:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``, all ``[C]``; dtype kept."""
    wide = accumulator(voxels.features.dtype)
    # Padding rows are cleared first: garbage times anything would reach the gradient.
    x = jnp.where(voxels.valid[:, None], voxels.features.astype(wide), jnp.zeros((), wide))
    factor = jax.lax.rsqrt(variance.astype(wide) + epsilon)
    if scale is not None:
        factor = factor * scale.astype(wide)
    y = (x - mean.astype(wide)[None, :]) * factor[None, :]
    if bias is not None:
        y = y + bias.astype(wide)[None, :]
    return voxels.replace_features(y.astype(voxels.features.dtype))
