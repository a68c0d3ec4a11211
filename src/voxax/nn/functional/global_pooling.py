"""Pooling over whole scenes."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from voxax import _compat
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
    if axis is not None:
        number = jax.lax.psum(number, axis)
    zero = jnp.zeros((), dtype)
    if reduction in ("max", "min"):
        x = jnp.where(voxels.valid[:, None], voxels.features, zero)
        merge = _best_with_gradient if jnp.issubdtype(dtype, jnp.inexact) else _best
        best = merge(x, scene, voxels.batch_size, reduction, axis)
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


def _best(
    x: jax.Array, scene: jax.Array, batch_size: int, reduction: str, axis: str | None
) -> jax.Array:
    """``[batch_size, C]``: the largest (smallest) row of each scene, of all its shards."""
    low, high = limits(x.dtype)
    shape = (batch_size, x.shape[1])
    if reduction == "max":
        best = jnp.full(shape, low, x.dtype).at[scene].max(x, mode="drop")
        return best if axis is None else jax.lax.pmax(best, axis)
    best = jnp.full(shape, high, x.dtype).at[scene].min(x, mode="drop")
    return best if axis is None else jax.lax.pmin(best, axis)


_best_with_gradient = jax.custom_jvp(_best, nondiff_argnums=(2, 3, 4))


@_best_with_gradient.defjvp
def _best_jvp(
    batch_size: int,
    reduction: str,
    axis: str | None,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Equal rows share the gradient, wherever they lie."""
    scene = primals[1]
    x = _stored(primals[0], scene)
    best = _best(x, scene, batch_size, reduction, axis)
    # NaN, which wins, is not equal to itself.
    wins = (x == best.at[scene].get(mode="clip")) | (x != x)

    def total(values: jax.Array) -> jax.Array:
        start = jnp.zeros(best.shape, accumulator(x.dtype))
        found = start.at[scene].add(values.astype(start.dtype), mode="drop")
        return found if axis is None else jax.lax.psum(found, axis)

    tangent = total(jnp.where(wins, tangents[0], jnp.zeros((), x.dtype)))
    return best, (tangent / jnp.maximum(total(wins), 1)).astype(x.dtype)


def _stored(x: jax.Array, scene: jax.Array) -> jax.Array:
    """``x``, computed once, while ``scene`` is not negative.

    XLA computes a cheap operand again in each loop that reads it, and may round it otherwise
    there (``a * b + c`` with one rounding or two). The row that gave the largest value is then
    equal to it no longer, and its gradient is lost: seen on the CPU, of a sum of two poolings
    under ``JAX_DISABLE_MOST_OPTIMIZATIONS``. ``optimization_barrier`` is gone before loops are
    fused. A loop whose number of rounds is not known stays.
    """
    x, scene, start = _compat.vary_alike(x, scene, jnp.zeros_like(x))
    rounds = jnp.any(scene >= 0).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda _, __: x, start)
