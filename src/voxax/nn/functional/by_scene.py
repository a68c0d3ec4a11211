"""Sums and extremes over the rows of each scene, in one native call on CPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.geometry.dtypes import accumulator


def sum_by_scene(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scenes: int,
    *,
    axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the sums ``[scenes, C]`` in the accumulator's dtype, and numbers ``int32[scenes]``.

    Args:
      features: ``[N, C]``.
      valid: ``bool[N]``; other rows may hold anything.
      scene: ``int32[N]``.
      scenes: how many there are.
      axis: mapped axis over which scenes are split.
    """
    if axis is not None or features.dtype.name not in FRACTIONS:
        return _sums_portable(features, valid, scene, scenes=scenes, axis=axis)
    total, number = _sums(features, valid, scene, scenes=scenes)
    return total, jax.lax.stop_gradient(number)


def best_by_scene(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scenes: int,
    *,
    largest: bool,
    axis: str | None = None,
) -> jax.Array:
    """Return the largest, or smallest, values ``[scenes, C]``, 0 in scenes without rows.

    A NaN beats every number; rows of equal values share the gradient. Arguments as of
    :func:`sum_by_scene`.
    """
    options = {"scenes": scenes, "largest": largest}
    if axis is not None or features.dtype.name not in FRACTIONS:
        return _extremes_portable(features, valid, scene, axis=axis, **options)[0]
    return _extremes(features, valid, scene, **options)[0]


def _place(valid: jax.Array, scene: jax.Array, scenes: int) -> jax.Array:
    return jnp.where(valid, scene, scenes)


def _numbers(place: jax.Array, scenes: int, axis: str | None) -> jax.Array:
    number = jnp.zeros((scenes,), jnp.int32).at[place].add(1, mode="drop")
    return number if axis is None else jax.lax.psum(number, axis)


def _sums_portable(
    x: jax.Array, valid: jax.Array, scene: jax.Array, *, scenes: int, axis: str | None = None
) -> tuple[jax.Array, jax.Array]:
    wide, place = accumulator(x.dtype), _place(valid, scene, scenes)
    x = jnp.where(valid[:, None], x.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros((scenes, x.shape[1]), wide).at[place].add(x, mode="drop")
    return total if axis is None else jax.lax.psum(total, axis), _numbers(place, scenes, axis)


def _sums_value(call: Any, x: Any, valid: Any, scene: Any, *, scenes: int) -> Any:
    total = jax.ShapeDtypeStruct((scenes, x.shape[1]), accumulator(x.dtype))
    number = jax.ShapeDtypeStruct((scenes,), jnp.int32)
    return call("scene_sums", (total, number), x, valid, scene)


def _sums_gradients(
    call: Any, ct: Any, x: Any, valid: Any, scene: Any, *results: Any, moves: Any, scenes: int
) -> Any:
    del results, moves, scenes
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("scene_rows", (result,), ct.astype(x.dtype), valid, scene)


_sums = differentiable_operator("voxax_scene_sums", _sums_value, _sums_portable, _sums_gradients)


def _extremes_portable(
    x: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    *,
    scenes: int,
    largest: bool,
    axis: str | None = None,
) -> tuple[jax.Array]:
    place, zero = _place(valid, scene, scenes), jnp.zeros((), x.dtype)
    x = jnp.where(valid[:, None], x, zero)
    merge = _best_of_scenes if jnp.issubdtype(x.dtype, jnp.inexact) else _best
    best = merge(x, place, scenes, largest, axis)
    return (jnp.where(_numbers(place, scenes, axis)[:, None] > 0, best, zero),)


def _extremes_value(
    call: Any, x: Any, valid: Any, scene: Any, *, scenes: int, largest: bool
) -> Any:
    result = jax.ShapeDtypeStruct((scenes, x.shape[1]), x.dtype)
    return call("scene_extremes", (result,), x, valid, scene, sizes=(largest,))


def _extremes_gradients(
    call: Any, ct: Any, x: Any, valid: Any, scene: Any, best: Any, *, moves: Any, **static: Any
) -> Any:
    del moves, static
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("scene_extremes_gradients", (result,), x, valid, scene, best, ct)


_extremes = differentiable_operator(
    "voxax_scene_extremes", _extremes_value, _extremes_portable, _extremes_gradients
)


def _best(
    x: jax.Array, scene: jax.Array, batch_size: int, largest: bool, axis: str | None
) -> jax.Array:
    """Return the largest (smallest) row of each scene, of all its shards: ``[batch_size, C]``."""
    # Begins with the worst number there is: an infinity would stop ``jax.debug_infs``.
    numbers = jnp.where(x == x, x, jnp.zeros((), x.dtype))
    start = jnp.min(numbers, axis=0) if largest else jnp.max(numbers, axis=0)
    if axis is not None:
        start = jax.lax.pmin(start, axis) if largest else jax.lax.pmax(start, axis)
    place = jnp.broadcast_to(start, (batch_size, x.shape[1])).at[scene]
    best = place.max(x, mode="drop") if largest else place.min(x, mode="drop")
    if axis is not None:
        best = jax.lax.pmax(best, axis) if largest else jax.lax.pmin(best, axis)
    return best


_best_of_scenes = jax.custom_jvp(_best, nondiff_argnums=(2, 3, 4))


@_best_of_scenes.defjvp
def _best_jvp(
    batch_size: int,
    largest: bool,
    axis: str | None,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Share the gradient among equal rows, on whichever shard they lie."""
    scene = primals[1]
    x = _stored(primals[0], scene)
    best = _best(x, scene, batch_size, largest, axis)
    # NaN, which wins, is not equal to itself.
    wins = (x == best.at[scene].get(mode="clip")) | (x != x)

    def total(values: jax.Array) -> jax.Array:
        start = jnp.zeros(best.shape, accumulator(x.dtype))
        found = start.at[scene].add(values.astype(start.dtype), mode="drop")
        return found if axis is None else jax.lax.psum(found, axis)

    tangent = total(jnp.where(wins, tangents[0], jnp.zeros((), x.dtype)))
    return best, (tangent / jnp.maximum(total(wins), 1)).astype(x.dtype)


def _stored(x: jax.Array, scene: jax.Array) -> jax.Array:
    """Return ``x``, computed once, while ``scene`` is not negative.

    XLA computes a cheap operand again in each loop that reads it, and may round it otherwise
    there (``a * b + c`` with one rounding or two). The row that gave the largest value is then
    equal to it no longer, and its gradient is lost: seen on the CPU, of a sum of two poolings
    under ``JAX_DISABLE_MOST_OPTIMIZATIONS``. ``optimization_barrier`` is gone before loops are
    fused. A loop whose number of rounds is not known stays.
    """
    x, scene, start = _compat.vary_alike(x, scene, jnp.zeros_like(x))
    rounds = jnp.any(scene >= 0).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda _, __: x, start)
