"""Rotary position embedding on the axes of space."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from voxax._array_types import Array, Float, Num
from voxax.errors import InputError
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import wide_fraction


@checked_operator
def rotary_embedding(
    x: Float[Array, "N H d"],
    positions: Num[Array, "N D"],
    base: float = 10.0,
) -> Float[Array, "N H d"]:
    """Turn pairs of channels by angles in proportion to the position.

    Products of two results depend on the difference of their positions alone. The channels of each
    head are cut into one part for each axis. Channel ``i`` and ``i + m`` of a part of ``2 * m``
    turn by ``position * base ** (-i / m)``, in radians.

    Args:
      x: ``[N, H, d]``, queries or keys; ``d`` is a multiple of ``2 * D``.
      positions: ``float[N, D]``.
      base: ratio of the fastest to the slowest turn.

    Returns:
      ``[N, H, d]`` in the dtype of ``x``, computed in at least float32.

    Raises:
      InputError: shapes that do not fit, integers, channels that cannot be cut, or a base that is
        not positive.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; along
    the axes of space, "Utonia: Toward One Encoder for All Point Clouds", arXiv 2603.03283.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"rotary_embedding of {x.dtype}: convert it to floats")
    check_rotary(x.shape[-1], positions.shape[-1], base)
    if x.ndim != 3 or positions.ndim != 2 or x.shape[0] != positions.shape[0]:
        raise InputError(
            f"rotary_embedding of shape {x.shape} at positions of shape {positions.shape}: "
            "expected [N, H, d] and [N, D]"
        )
    return _turned(x, positions, base=float(base))


def check_rotary(channels: int, ndim: int, base: float) -> None:
    """Raise :class:`InputError` unless a head of ``channels`` can be turned along ``ndim`` axes."""
    if channels % (2 * ndim):
        raise InputError(
            f"a head of {channels} channels cannot be turned along {ndim} axes: give a multiple of "
            f"{2 * ndim} channels"
        )
    if base <= 0:
        raise InputError(f"base={base} of the rotary embedding must be positive")


@functools.partial(jax.jit, static_argnames="base")
def _turned(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    rows, heads, channels = x.shape
    ndim = positions.shape[1]
    half = channels // (2 * ndim)
    wide = wide_fraction(x.dtype)
    rates = jnp.asarray([base ** (-i / half) for i in range(half)], wide)
    angles = positions.astype(wide)[:, :, None] * rates[None, None, :]  # [N, D, half]
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    parts = x.astype(wide).reshape(rows, heads, ndim, 2, half)
    first, second = parts[:, :, :, 0], parts[:, :, :, 1]
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=3)
    return turned.reshape(x.shape).astype(x.dtype)
