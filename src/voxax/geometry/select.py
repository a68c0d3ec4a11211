"""Select voxels by a mask (prune), by scores (top_k) or inside a box (crop)."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Num
from voxax.coords import COORD_LIMIT, PAD
from voxax.coords.ordering import sort_distinct
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator
from voxax.geometry.eager import as_host_array, eagerly, in_either
from voxax.geometry.regroup import choose_capacity, gather_rows, kept_rows, new_geometry
from voxax.geometry.voxels import Voxels


@checked_operator
def prune(
    voxels: Voxels, mask: Bool[Array | np.ndarray, " capacity"], *, capacity: int | None = None
) -> Voxels:
    """Return only the voxels where ``mask`` is True.

    Args:
      voxels: the input, ``C`` channels.
      mask: ``bool[voxels.capacity]``; its values in padding rows are ignored.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and the input's capacity under ``jax.jit``.

    Raises:
      InputError: the mask has another shape or dtype.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit are counted in ``num_dropped``.

    Examples:
      >>> kept = vx.prune(voxels, voxels.coords[:, 3] < 4)
      >>> int(kept.valid_coords()[:, 3].max())
      3
    """
    mask = mask if isinstance(mask, jax.Array) else as_host_array(mask)
    if mask.shape != (voxels.capacity,) or mask.dtype != bool:
        raise InputError(
            f"mask must be bool[{voxels.capacity}], one for each row of the voxels, got "
            f"{mask.dtype}{list(mask.shape)}"
        )
    return _kept(voxels, mask, capacity, voxels.capacity)


@checked_operator
def top_k(
    voxels: Voxels,
    scores: Num[Array | np.ndarray, " capacity"],
    k: int,
    *,
    capacity: int | None = None,
) -> Voxels:
    """Return only the ``k`` voxels with the highest scores of every scene.

    Args:
      voxels: the input, ``C`` channels.
      scores: real numbers ``[voxels.capacity]``. Of equal scores, the earlier row is kept; NaN is
        lowest; scores of padding rows are ignored. Gradients flow through the features of the kept
        voxels, but not through the scores.
      k: number of voxels to keep in each scene, at least 1; static. A smaller scene keeps all.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and ``min(k * batch_size, voxels.capacity)`` under ``jax.jit``.

    Raises:
      InputError: the scores have another shape or are complex, or ``k`` is below 1.
      CapacityError: as :func:`prune`.

    Examples:
      >>> scores = voxels.coords[:, 1]  # the largest x
      >>> int(vx.top_k(voxels, scores, 5).count)
      5
    """
    scores = scores if isinstance(scores, jax.Array) else as_host_array(scores)
    if scores.shape != (voxels.capacity,) or jnp.issubdtype(scores.dtype, jnp.complexfloating):
        hint = "; scores[:, 0] has that shape" if scores.shape == (voxels.capacity, 1) else ""
        raise InputError(
            f"scores must be real [{voxels.capacity}], one for each row of the voxels, got "
            f"{scores.dtype}{list(scores.shape)}{hint}"
        )
    k = min(check_whole("k", k), voxels.capacity)
    fixed = jax.lax.stop_gradient(scores) if _compat.is_traced(scores) else scores
    best = _best(voxels.coords, fixed, k)
    return _kept(voxels, best, capacity, min(voxels.capacity, k * voxels.batch_size))


@checked_operator
def crop(voxels: Voxels, low: Any, high: Any, *, capacity: int | None = None) -> Voxels:
    """Return only the voxels inside the box ``low <= coordinate < high``.

    Args:
      voxels: the input, ``C`` channels.
      low, high: corners in lattice coordinates at the voxels' stride, one integer for all axes or
        one per axis; may be traced.
      capacity: as in :func:`prune`.

    Raises:
      InputError: the corners are no integers or have another number of axes.
      CapacityError: as :func:`prune`.

    Examples:
      >>> int(vx.crop(voxels, (0, 0, 0), (4, 4, 4)).valid_coords()[:, 1:].max())
      3
    """
    corners = [
        _corner(value, voxels.geometry.ndim, name) for value, name in ((low, "low"), (high, "high"))
    ]
    return _kept(voxels, _inside(voxels.coords, *corners), capacity, voxels.capacity)


def _kept(voxels: Voxels, keep: Any, capacity: int | None, bound: int) -> Voxels:
    source = voxels.geometry
    capacity = choose_capacity(capacity, bound, _number(source.coords, keep))
    found = kept_rows(source.coords, keep, capacity)
    geometry = new_geometry(found, [source], level_capacities=source.level_capacities)
    features = gather_rows(voxels.features, found.source)
    return dataclasses.replace(voxels, geometry=geometry, features=features)


@in_either()
def _number(xp: Any, coords: Any, keep: Any) -> Any:
    return xp.sum(keep & (coords[:, 0] != PAD), dtype=np.int32)


def _best_on_host(coords: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    scene, rows = coords[:, 0], np.arange(len(coords), dtype=np.int32)
    wide = scores.astype(accumulator(scores.dtype))
    key = -wide if jnp.issubdtype(wide.dtype, jnp.floating) else ~wide
    order = np.lexsort((key, scene))  # keeps equal ones in order, and puts NaN last
    best = np.zeros(len(coords), bool)
    best[order] = rows - np.searchsorted(scene, scene) < k
    return best


@eagerly(_best_on_host)
@functools.partial(jax.jit, static_argnames="k")
def _best(coords: jax.Array, scores: jax.Array, k: int) -> jax.Array:
    """Return ``bool[N]``, True for the ``k`` rows with the highest scores of every scene.

    ``scores`` is ``[N]``. Padding rows of ``coords`` count as one more scene.
    """
    scene, rows = coords[:, 0], jnp.arange(coords.shape[0], dtype=jnp.int32)
    # Rows are sorted by scene, padding last, so sorting by scene first leaves scenes in place.
    *_, order = _sorted(scene, _descending(scores), rows, num_keys=3)
    rank = rows - jnp.searchsorted(scene, scene).astype(jnp.int32)
    return jnp.zeros(scene.shape, bool).at[order].set(rank < k, unique_indices=True)


def _descending(scores: jax.Array) -> jax.Array:
    """Return keys whose ascending order has the highest scores first and NaN last.

    They are ``int32`` if the scores have 32 bits or fewer.
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
    # Make 0 and -0 equal, and all NaN. The bits of negative floats are in reverse order.
    scores = jnp.where(scores == 0, 0, jnp.where(jnp.isnan(scores), jnp.nan, scores))
    bits = jax.lax.bitcast_convert_type(scores, jnp.int32)
    return jnp.where(bits < 0, bits ^ np.int32(2**31 - 1), bits)


def _sorted(*columns: jax.Array, num_keys: int) -> tuple[jax.Array, ...]:
    if all(column.dtype == jnp.int32 for column in columns):
        return sort_distinct(*columns, num_keys=num_keys)
    return tuple(jax.lax.sort(columns, num_keys=num_keys))


@in_either()
def _inside(xp: Any, coords: Any, low: Any, high: Any) -> Any:
    cell = coords[:, 1:]
    return xp.all((cell >= low[None, :]) & (cell < high[None, :]), axis=1)


def _corner(value: Any, ndim: int, name: str) -> jax.Array:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.shape not in ((), (ndim,)) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"{name} must be an integer lattice coordinate, or one for each of {ndim} axes, got "
            f"{array.dtype}{list(array.shape)}"
        )
    # A corner beyond the coordinate range removes nothing, so it can be clipped to 32 bits. The
    # bounds of the clip must fit the array's dtype.
    info = jnp.iinfo(array.dtype)
    low, high = max(int(info.min), -COORD_LIMIT), min(int(info.max), COORD_LIMIT)
    clipped = (jnp if isinstance(array, jax.Array) else np).clip(array, low, high)
    return jnp.broadcast_to(jnp.asarray(clipped, jnp.int32), (ndim,))
