"""From points or integer coordinates to Voxels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.coords import COORD_LIMIT, PAD, UniqueRows, bucket_capacity, is_valid, unique_rows
from voxax.errors import InputError
from voxax.geometry.input_checks import (
    batch_indices,
    check_coords,
    check_finite,
    check_origin,
    check_voxel_size,
    float_positions,
    infer_batch_size,
)
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.regroup import REDUCTIONS, Reduction, reduce_rows
from voxax.geometry.voxel_geometry import VoxelGeometry, check_overflow
from voxax.geometry.voxels import Voxels


def from_coords(
    coords: Any,
    features: Any,
    batch_size: int = 1,
    *,
    capacity: int | None = None,
    reduction: Reduction = "mean",
    return_inverse: bool = False,
    stride: int | Sequence[int] = 1,
    voxel_size: float | Sequence[float] = (),
    origin: Sequence[float] = (),
) -> Any:
    """Voxels from integer coordinates in any order, duplicates merged.

    Args:
      coords: ``int[N, 1 + D]``, batch index then D coordinates (negative allowed), D 1 to 4.
        Rows whose entries equal ``PAD`` are padding.
      features: ``[N, C]``.
      batch_size: number of scenes; batch indices must lie in ``[0, batch_size)``.
      capacity: static rows of the result; None buckets the number of voxels eagerly, and
        takes N under ``jax.jit``.
      reduction: how duplicates merge: ``mean``, ``sum``, ``max``, ``min``, ``first``.
      return_inverse: also return ``int32[N]``, each input's row, -1 where it was dropped.
      stride: total stride of the lattice that ``coords`` count on, an integer or one per
        axis; for voxels made at a coarse level, e.g. as the target of a strided convolution.
      voxel_size: edge length at stride 1, a number or one per axis; () where there is no unit.
      origin: position of the lattice origin in the same unit.

    Returns:
      ``Voxels``, or ``(Voxels, inverse)``.

    Raises:
      InputError: wrong rank or dtype, lengths that differ, values outside 30 bits.
      CapacityError: eager, and the voxels do not fit ``capacity``. Traced overflow is
        counted in ``num_dropped``.
    """
    coords, features = check_coords(coords, features, batch_size)
    ndim = coords.shape[1] - 1
    if capacity is not None and capacity < 1:
        raise InputError(f"capacity={capacity} must be at least 1, also for zero voxels")
    if reduction not in REDUCTIONS:
        raise InputError(f"unknown reduction {reduction!r}; known: {', '.join(REDUCTIONS)}")
    rows = max(coords.shape[0], 1) if capacity is None else capacity
    unique, reduced = _merge(coords, features, batch_size, rows, reduction)
    if capacity is None and not _compat.is_traced(unique.count):
        rows = bucket_capacity(int(unique.count))
        unique = unique._replace(coords=_resize(unique.coords, rows, int(PAD)))
        reduced = _resize(reduced, rows, 0)
    level = per_axis(stride, ndim, "stride")
    check_overflow(unique.count, unique.num_dropped, level)
    geometry = VoxelGeometry(
        unique.coords, unique.count, {level: unique.num_dropped}, None, level, batch_size
    )
    size = () if np.size(voxel_size) == 0 else check_voxel_size(voxel_size, ndim)
    corner = () if np.size(origin) == 0 else check_origin(origin, ndim)
    voxels = Voxels(geometry, reduced, size, corner)
    return (voxels, unique.inverse) if return_inverse else voxels


# Jitted so that an eager call is one program instead of twenty small ones.
@functools.partial(jax.jit, static_argnames=("batch_size", "capacity", "reduction"))
def _merge(
    coords: jax.Array, features: jax.Array, batch_size: int, capacity: int, reduction: Reduction
) -> tuple[UniqueRows, jax.Array]:
    """Distinct rows inside the range and their features; rows outside count as dropped."""
    good = is_valid(coords) & (coords[:, 0] >= 0) & (coords[:, 0] < batch_size)
    good &= jnp.all((coords[:, 1:] >= -COORD_LIMIT) & (coords[:, 1:] < COORD_LIMIT), axis=1)
    lost = jnp.sum(is_valid(coords) & ~good, dtype=jnp.int32)
    unique = unique_rows(jnp.where(good[:, None], coords, PAD), capacity)
    reduced = reduce_rows(features, unique.inverse, capacity, reduction)
    return unique._replace(num_dropped=unique.num_dropped + lost), reduced


def _resize(array: jax.Array, rows: int, fill: int) -> jax.Array:
    """The first ``rows`` rows, or as many more of ``fill`` as are missing."""
    missing = rows - array.shape[0]
    if missing <= 0:
        return array[:rows]
    return jnp.pad(array, ((0, missing), (0, 0)), constant_values=fill)


def voxelize(
    positions: Any,
    features: Any = None,
    voxel_size: float | Sequence[float] = 0.1,
    batch_index: Any = None,
    reduction: Reduction = "mean",
    capacity: int | None = None,
    return_inverse: bool = False,
    *,
    batch_size: int | None = None,
    origin: Sequence[float] | None = None,
) -> Any:
    """Group points into voxels: coordinate ``floor((position - origin) / voxel_size)``.

    Args:
      positions: ``float[N, D]``, D 1 to 4, in any unit; a :class:`voxax.Points` brings its
        features and batch index along.
      features: ``[N, C]``; None gives one channel of ones.
      voxel_size: edge length in the positions' unit, a number or one per axis.
      batch_index: ``int[N]``, the scene of each point; None puts all in scene 0.
      reduction: how the points of a voxel merge; see :meth:`Voxels.from_coords`.
      capacity: static rows of the result; None buckets eagerly, takes N under ``jax.jit``.
      return_inverse: also return ``int32[N]``, the voxel row of each point, -1 if dropped.
      batch_size: number of scenes, static; None reads it off ``batch_index`` eagerly.
      origin: position of the lattice origin; None is zero. Large world coordinates should
        be shifted by the caller in float64 first: float32 resolves 1 cm only below 100 km.

    Returns:
      ``Voxels``, or ``(Voxels, inverse)``.

    Raises:
      InputError: eager: NaN or infinite positions, coordinates outside 30 bits, wrong rank
        or dtype, lengths that differ, voxel size zero or negative. Traced, such points are
        dropped and counted in ``num_dropped``.
      CapacityError: eager, and the voxels do not fit ``capacity``.
    """
    from voxax.geometry.points import Points

    keep = None
    if isinstance(positions, Points):
        points = positions
        positions, keep = points.positions, points.valid
        features = points.features if features is None else features
        batch_index = points.batch_index if batch_index is None else batch_index
        batch_size = points.batch_size if batch_size is None else batch_size
    positions = float_positions(positions)
    rows, ndim = positions.shape
    size = check_voxel_size(voxel_size, ndim)
    corner = check_origin((0.0,) * ndim if origin is None else origin, ndim)
    if batch_index is None and batch_size is None:
        batch_size = 1
    batch_index = batch_indices(batch_index, rows)
    if batch_size is None:
        batch_size = infer_batch_size(batch_index)
    if features is None:
        features = jnp.ones((rows, 1), jnp.float32)

    dtype = positions.dtype
    scaled = (positions - jnp.asarray(corner, dtype)[None, :]) / jnp.asarray(size, dtype)[None, :]
    cell = jnp.floor(scaled)
    inside = jnp.all(jnp.isfinite(cell) & (jnp.abs(cell) < COORD_LIMIT), axis=1)
    wanted = jnp.ones((rows,), bool) if keep is None else keep
    _raise_on_bad_points(positions, inside | ~wanted, size)
    lost = jnp.sum(wanted & ~inside, dtype=jnp.int32)
    lattice = jnp.where(inside[:, None], cell, 0).astype(jnp.int32)
    coords = jnp.concatenate([batch_index[:, None], lattice], axis=1)
    coords = jnp.where((inside & wanted)[:, None], coords, PAD)
    voxels, inverse = from_coords(
        coords,
        features,
        batch_size,
        capacity=capacity,
        reduction=reduction,
        return_inverse=True,
        voxel_size=size,
        origin=corner,
    )
    if _compat.is_traced(lost):
        level = voxels.geometry.stride
        drops = {level: voxels.geometry.drops[level] + lost}
        voxels = Voxels(
            VoxelGeometry(voxels.coords, voxels.count, drops, None, level, batch_size),
            voxels.features,
            size,
            corner,
        )
    return (voxels, inverse) if return_inverse else voxels


def _raise_on_bad_points(positions: jax.Array, good: jax.Array, size: tuple[float, ...]) -> None:
    if _compat.is_traced(good) or bool(good.all()):
        return
    check_finite(np.where(np.asarray(good)[:, None], 0, np.asarray(positions)))
    first = int(jnp.argmin(good))
    raise InputError(
        f"position {positions[first].tolist()} at row {first} has lattice coordinates outside "
        f"[-2**30, 2**30) for voxel_size {size}: shift the scene with origin= or enlarge voxel_size"
    )
