"""Keeping some of the voxels: under a mask, by score, in a box."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.coords import COORD_LIMIT, compact_rows, is_valid
from voxax.coords.ordering import sort_distinct
from voxax.errors import InputError
from voxax.geometry.regroup import choose_capacity, gather_rows, new_geometry
from voxax.geometry.voxels import Voxels


@_compat.on_whole_arrays
def prune(voxels: Voxels, mask: Any, *, capacity: int | None = None) -> Voxels:
    """Return the voxels where ``mask`` is true.

    Args:
      mask: ``bool[voxels.capacity]``; its values in padding rows are ignored.
      capacity: static rows; None buckets the number kept eagerly, takes the input's capacity
        under ``jax.jit``.

    Raises:
      InputError: a mask of another shape or dtype.
      CapacityError: eager, and the voxels do not fit ``capacity``. Traced overflow is counted
        in ``num_dropped``.
    """
    mask = jnp.asarray(mask)
    if mask.shape != (voxels.capacity,) or mask.dtype != bool:
        raise InputError(
            f"mask must be bool[{voxels.capacity}], one for each row of the voxels, got "
            f"{mask.dtype}{list(mask.shape)}"
        )
    return _kept(voxels, mask, capacity, voxels.capacity)


@_compat.on_whole_arrays
def top_k(voxels: Voxels, scores: Any, k: int, *, capacity: int | None = None) -> Voxels:
    """Return the ``k`` voxels of every scene with the highest scores, or all if it has fewer.

    Args:
      scores: real ``[voxels.capacity]``. Of equal ones the earlier row wins, NaN comes last;
        scores of padding rows are ignored. Gradients flow through the features of
        the voxels that are kept, none through the scores.
      k: static, at least 1.
      capacity: static rows; None buckets the number kept eagerly, takes
        ``min(k * batch_size, voxels.capacity)`` under ``jax.jit``.

    Raises:
      InputError: scores of another shape, k below 1.
      CapacityError: as :func:`prune`.
    """
    scores = jnp.asarray(scores)
    if scores.shape != (voxels.capacity,) or jnp.issubdtype(scores.dtype, jnp.complexfloating):
        hint = "; scores[:, 0] has that shape" if scores.shape == (voxels.capacity, 1) else ""
        raise InputError(
            f"scores must be real [{voxels.capacity}], one for each row of the voxels, got "
            f"{scores.dtype}{list(scores.shape)}{hint}"
        )
    if operator.index(k) < 1:
        raise InputError(f"k={k} must be at least 1")
    k = min(operator.index(k), voxels.capacity)
    best = _best(voxels.coords, jax.lax.stop_gradient(scores), k)
    return _kept(voxels, best, capacity, min(voxels.capacity, k * voxels.batch_size))


@_compat.on_whole_arrays
def crop(voxels: Voxels, low: Any, high: Any, *, capacity: int | None = None) -> Voxels:
    """Return the voxels inside the box ``low <= coordinate < high``.

    Args:
      low, high: lattice coordinates at the voxels' own stride, an integer or one per axis; may
        be traced.
      capacity: as in :func:`prune`.

    Raises:
      InputError: corners that are no integers or have another number of axes.
      CapacityError: as :func:`prune`.
    """
    corners = [
        _corner(value, voxels.geometry.ndim, name) for value, name in ((low, "low"), (high, "high"))
    ]
    return _kept(voxels, _inside(voxels.coords, *corners), capacity, voxels.capacity)


def _kept(voxels: Voxels, keep: jax.Array, capacity: int | None, bound: int) -> Voxels:
    source = voxels.geometry
    capacity = choose_capacity(capacity, bound, _number(source.coords, keep))
    found = compact_rows(source.coords, keep, capacity)
    geometry = new_geometry(found, [source], level_capacities=source.level_capacities)
    features = gather_rows(voxels.features, found.source)
    return dataclasses.replace(voxels, geometry=geometry, features=features)


@jax.jit
def _number(coords: jax.Array, keep: jax.Array) -> jax.Array:
    return jnp.sum(keep & is_valid(coords), dtype=jnp.int32)


@functools.partial(jax.jit, static_argnames="k")
def _best(coords: jax.Array, scores: jax.Array, k: int) -> jax.Array:
    """``bool[N]``: the k best rows of every scene."""
    scene, rows = coords[:, 0], jnp.arange(coords.shape[0], dtype=jnp.int32)
    # Padding is behind every scene, and sorting by scene leaves each scene where it was.
    *_, order = _sorted(scene, _descending(scores), rows, num_keys=3)
    rank = rows - jnp.searchsorted(scene, scene).astype(jnp.int32)
    return jnp.zeros(scene.shape, bool).at[order].set(rank < k, unique_indices=True)


def _descending(scores: jax.Array) -> jax.Array:
    """Keys of the highest scores first, those that are no numbers last.

    ``int32`` in the order of the scores where these have 32 bits or fewer.
    """
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        if scores.dtype.itemsize > 4:
            return ~scores  # unlike the negative, it cannot overflow
        if scores.dtype == jnp.uint32:
            return ~jax.lax.bitcast_convert_type(scores ^ np.uint32(1 << 31), jnp.int32)
        return ~scores.astype(jnp.int32)
    if scores.dtype.itemsize > 4:
        return -scores
    scores = -scores.astype(jnp.float32)
    # One zero and one NaN, as comparisons see them. Bits of negative numbers count downwards.
    scores = jnp.where(scores == 0, 0, jnp.where(jnp.isnan(scores), jnp.nan, scores))
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    return jnp.where(bits < 0, bits ^ np.int32(2**31 - 1), bits)


def _sorted(*columns: jax.Array, num_keys: int) -> tuple[jax.Array, ...]:
    if all(column.dtype == jnp.int32 for column in columns):
        return sort_distinct(*columns, num_keys=num_keys)
    return tuple(jax.lax.sort(columns, num_keys=num_keys))


@jax.jit
def _inside(coords: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    cell = coords[:, 1:]
    return jnp.all((cell >= low[None, :]) & (cell < high[None, :]), axis=1)


def _corner(value: Any, ndim: int, name: str) -> jax.Array:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.shape not in ((), (ndim,)) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"{name} must be an integer lattice coordinate, or one for each of {ndim} axes, got "
            f"{array.dtype}{list(array.shape)}"
        )
    # Beyond the coordinate range a corner cuts nothing off, and 32 bits hold its limits.
    # Bounds that the array's own dtype can hold: a wider one would be cut to it.
    info = jnp.iinfo(array.dtype)
    low, high = max(int(info.min), -COORD_LIMIT), min(int(info.max), COORD_LIMIT)
    clipped = (jnp if isinstance(array, jax.Array) else np).clip(array, low, high)
    return jnp.broadcast_to(jnp.asarray(clipped, jnp.int32), (ndim,))
