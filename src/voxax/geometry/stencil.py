"""The voxels around points, and their weights in interpolation."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax.coords import COORD_LIMIT, find_neighbors, find_rows
from voxax.errors import InputError
from voxax.geometry.input_checks import (
    batch_indices,
    float_positions,
)
from voxax.geometry.points import Points
from voxax.geometry.voxels import Voxels


class Cloud(NamedTuple):
    """``float[N, D]``, ``int32[N]``, ``bool[N]``: rows that are not valid may hold anything."""

    positions: jax.Array
    batch_index: jax.Array
    valid: jax.Array


class Lattice(NamedTuple):
    """Where cells lie, one entry per axis: ``cell = floor((position - origin) / size) // stride``.

    Arrays rather than static, so that clouds of every voxel size share one program.
    """

    origin: jax.Array
    size: jax.Array
    stride: jax.Array


def cloud_of(voxels: Voxels, positions: Any, batch_index: Any) -> Cloud:
    """Points or arrays, checked against the voxels they are read from; see ``vx.devoxelize``."""
    valid = None
    if isinstance(positions, Points):
        if positions.batch_size != voxels.batch_size:
            raise InputError(
                f"points of {positions.batch_size} scenes and voxels of {voxels.batch_size}: both "
                "must be of one batch"
            )
        valid = positions.valid
        batch_index = positions.batch_index if batch_index is None else batch_index
        positions = positions.positions
    # As a JAX array first: positions that are not finite are allowed here.
    positions = float_positions(jnp.asarray(positions))
    rows, ndim = positions.shape
    if ndim != voxels.geometry.ndim:
        raise InputError(f"{ndim}-D positions and {voxels.geometry.ndim}-D voxels")
    valid = jnp.ones((rows,), bool) if valid is None else valid
    return Cloud(positions, batch_indices(batch_index, rows), valid)


def lattice_of(voxels: Voxels, dtype: Any) -> Lattice:
    """Where the voxels lie; ``dtype`` is that of the positions."""
    ndim = voxels.geometry.ndim
    origin = voxels.origin or (0.0,) * ndim
    size = voxels.voxel_size or (1.0,) * ndim
    stride = np.asarray(voxels.stride, np.int32)
    return Lattice(jnp.asarray(origin, dtype), jnp.asarray(size, dtype), jnp.asarray(stride))


def stencil(
    coords: jax.Array,
    cloud: Cloud,
    lattice: Lattice,
    interpolation: str,
    normalize: bool,
    wide: Any,
) -> tuple[list[jax.Array], list[jax.Array | None]]:
    """For each tap: rows ``int32[N]``, the capacity where missing, and weights ``[N]``.

    Args:
      coords: ``int32[capacity, 1 + D]`` in canonical order.
      cloud, lattice: the points, and where the cells lie.
      interpolation: ``nearest`` has one tap and no weight, ``trilinear`` ``2**D`` taps.
      normalize: scale the weights of taps that exist to sum to one.
      wide: dtype of the weights.
    """
    known = cloud.valid & jnp.all(jnp.isfinite(cloud.positions), axis=1)
    positions = jnp.where(known[:, None], cloud.positions, lattice.origin[None, :])
    cell = (positions - lattice.origin[None, :]) / lattice.size[None, :]
    stride = lattice.stride[None, :]
    if interpolation == "nearest":
        known &= jnp.all(_in_range(cell, -COORD_LIMIT), axis=1)
        # Integers, exactly as voxelization followed by striding counts.
        fine = jnp.floor(jnp.where(known[:, None], cell, 0)).astype(jnp.int32)
        queries = _rows(cloud.batch_index, jnp.floor_divide(fine, stride))
        row = find_rows(coords, queries)
        return [_or_beyond(jnp.where(known, row, -1), coords)], [None]
    cell = cell / stride.astype(cell.dtype) - 0.5
    # A point half a cell below the lowest voxel's centre still sees that voxel.
    known &= jnp.all(_in_range(cell, -COORD_LIMIT - 1), axis=1)
    cell = jnp.where(known[:, None], cell, 0)
    base = jnp.floor(cell)
    queries = _rows(cloud.batch_index, base.astype(jnp.int32))
    taps = list(itertools.product((0, 1), repeat=coords.shape[1] - 1))
    neighbors = find_neighbors(coords, queries, known, np.asarray(taps))
    fraction = (cell - base).astype(wide)
    weights = jnp.stack([_weight(fraction, tap) for tap in taps], axis=1)
    if normalize:
        weights = _to_one(weights, neighbors >= 0)
    rows = _or_beyond(neighbors, coords)
    return [rows[:, k] for k in range(len(taps))], [weights[:, k] for k in range(len(taps))]


def _in_range(cell: jax.Array, low: int) -> jax.Array:
    """Whether ``floor(cell)`` lies in ``[low, 2**30)``."""
    bounds = jnp.asarray([low, COORD_LIMIT], cell.dtype)
    return (cell >= bounds[0]) & (cell < bounds[1])


def _rows(batch_index: jax.Array, cells: jax.Array) -> jax.Array:
    return jnp.concatenate([batch_index[:, None], cells], axis=1)


def _or_beyond(row: jax.Array, coords: jax.Array) -> jax.Array:
    # A negative index would count from the end.
    return jnp.where(row < 0, coords.shape[0], row)


def _weight(fraction: jax.Array, tap: tuple[int, ...]) -> jax.Array:
    weight = jnp.ones(fraction.shape[:1], fraction.dtype)
    for axis, upper in enumerate(tap):
        weight = weight * (fraction[:, axis] if upper else 1 - fraction[:, axis])
    return weight


def _to_one(weights: jax.Array, exists: jax.Array) -> jax.Array:
    """Weights ``[N, K]`` of the taps that exist, scaled to sum to one, or all zero."""
    weights = jnp.where(exists, weights, jnp.zeros((), weights.dtype))
    # Only ratios count. In units of the largest weight the sum is at least one, so its
    # powers in first and second derivatives cannot overflow.
    largest = jax.lax.stop_gradient(jnp.max(weights, axis=1, keepdims=True))
    some = largest > np.sqrt(jnp.finfo(weights.dtype).tiny)
    scaled = jnp.where(some, weights / jnp.where(some, largest, 1), 0)
    total = jnp.where(some, jnp.sum(scaled, axis=1, keepdims=True), 1)
    return scaled / total
