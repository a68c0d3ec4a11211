"""Statistics over all rows that exist, and normalising with them: what batch norm is made of."""

from __future__ import annotations

import functools
from typing import Protocol, Self, TypeVar

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import accumulator


class FeatureRows(Protocol):
    """What layers that see each row alone need: Voxels and Points have it."""

    @property
    def features(self) -> jax.Array: ...

    @property
    def valid(self) -> jax.Array: ...

    def replace_features(self, features: jax.Array) -> Self: ...


Rows = TypeVar("Rows", bound=FeatureRows)


@functools.partial(jax.jit, static_argnames="axis_name")
def masked_moments(
    features: jax.Array, valid: jax.Array, axis_name: str | tuple[str, ...] | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and (biased) variance of the valid rows, in float32 or wider.

    Args:
      features: ``[N, C]``; rows that are not valid may hold anything.
      valid: ``bool[N]``.
      axis_name: also reduce over this mapped axis (or axes).

    Returns:
      ``(mean [C], variance [C], number [])``; zeros where no row is valid.
    """
    wide = accumulator(features.dtype)
    x = clear_padding(features, valid)
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
    voxels: Rows,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    epsilon: float = 1e-5,
) -> Rows:
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias``; dtype kept.

    Args:
      voxels: Voxels or Points, ``C`` channels.
      mean, variance: ``[C]``, of each channel.
      scale, bias: ``[C]``; None leaves them out.
      epsilon: added to the variance.
    """
    features = _normalize(
        voxels.features, voxels.valid, mean, variance, scale, bias, epsilon=epsilon
    )
    return voxels.replace_features(features)


@functools.partial(jax.jit, static_argnames="epsilon")
def _normalize(
    features: jax.Array,
    valid: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    epsilon: float,
) -> jax.Array:
    wide = accumulator(features.dtype)
    x = clear_padding(features, valid)
    factor = jax.lax.rsqrt(variance.astype(wide) + epsilon)
    if scale is not None:
        factor = factor * scale.astype(wide)
    y = (x - mean.astype(wide)[None, :]) * factor[None, :]
    if bias is not None:
        y = y + bias.astype(wide)[None, :]
    return y.astype(features.dtype)


def clear_padding(features: jax.Array, valid: jax.Array) -> jax.Array:
    """``features [N, C]`` in the accumulator's dtype, zero where ``valid`` is False.

    Before anything is computed: garbage times anything would reach the gradient.
    """
    wide = accumulator(features.dtype)
    return jnp.where(valid[:, None], features.astype(wide), jnp.zeros((), wide))
