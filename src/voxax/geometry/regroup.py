"""Shared steps of the functions that make voxels at new coordinates from existing voxels.

``rows int32[capacity]`` is, for each row of the new voxels, the source row that it comes from, or
-1. :func:`gather_rows` then gathers the features. It is linear and reads no padding, so derivatives
of any order are right and values in padding have no effect.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.coords import (
    PAD,
    CompactRows,
    UniqueRows,
    compact_rows,
    find_rows,
    host,
    is_valid,
    unique_rows,
)
from voxax.errors import InputError, check_known
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.dtypes import accumulator, fraction_dtype, limits, product_dtype, wide_fraction
from voxax.geometry.eager import as_host_array, eagerly, in_either, known_on_cpu, to_device_of
from voxax.geometry.halo import refuse_shard
from voxax.geometry.host_merge import REDUCTIONS, Reduction, merge_rows, reduce_on_host
from voxax.geometry.input_checks import check_capacity, check_mean_digits, check_sum_range
from voxax.geometry.lost_rows import Level, LostRows
from voxax.geometry.row_operations import gathered, gathered_on_host, join_rows, read_rows
from voxax.geometry.voxel_geometry import VoxelGeometry, check_overflow

_gathered = eagerly(gathered_on_host)(jax.jit(gathered))


def gather_rows(features: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``features[rows]``, zero where ``rows`` is -1.

    Args:
      features: ``[N, C]``.
      rows: ``int32[...]``, row numbers.

    Returns:
      ``[..., C]``.
    """
    if _compat.is_traced(features) and _compat.is_evaluated(features, rows) and features.ndim == 2:
        return read_rows(features, rows)
    return _gathered(features, rows)


def rows_on_host(coords: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the row of each query in sorted ``coords``, or -1: :func:`rows_at` in NumPy."""
    valid, rows = queries[:, 0] != PAD, np.full(len(queries), -1, np.int32)
    center = np.zeros((1, coords.shape[1] - 1), np.int64)
    table = coords[: np.count_nonzero(coords[:, 0] != PAD)]
    rows[valid] = host.find_neighbors(table, queries[valid], center)[:, 0]
    return rows


@eagerly(rows_on_host)
@jax.jit
def rows_at(coords: jax.Array, queries: jax.Array) -> jax.Array:
    """Return ``int32[M]``, the row of each query among the voxels, or -1.

    ``coords`` are in lexicographic order. Queries that are padding or match no voxel get -1.
    """
    return jnp.where(is_valid(queries), find_rows(coords, queries), -1)


def sources_on_host(targets: np.ndarray, capacity: int) -> np.ndarray:
    """Return the inverse of ``targets``, -1 where there is none: :func:`source_rows` in NumPy."""
    source = np.full(capacity, -1, np.int32)
    (moved,) = np.nonzero((targets >= 0) & (targets < capacity))
    source[targets[moved]] = moved
    return source


@eagerly(sources_on_host)
@functools.partial(jax.jit, static_argnames="capacity")
def source_rows(targets: jax.Array, capacity: int) -> jax.Array:
    """Return the inverse of ``targets``: for each target row, the source row that goes there.

    Args:
      targets: ``int32[N]``, the target of each source row, or -1; no two rows have the same target.
      capacity: number of target rows.

    Returns:
      ``int32[capacity]``, the source row of each target row, -1 where there is none.
    """
    place = jnp.where(targets < 0, capacity, targets)
    index = jnp.arange(targets.shape[0], dtype=jnp.int32)
    return jnp.full((capacity,), -1, jnp.int32).at[place].set(index, mode="drop")


def kept_on_host(coords: np.ndarray, keep: np.ndarray, capacity: int) -> CompactRows:
    """Return the rows of ``coords`` where ``keep`` is True, in arrays of ``capacity`` rows.

    This is :func:`voxax.coords.compact_rows` in NumPy. Padding rows are left out.
    """
    (kept,) = np.nonzero(keep & (coords[:, 0] != PAD))
    source = np.full(capacity, -1, np.int32)
    source[: len(kept)] = kept[:capacity]
    count = min(len(kept), capacity)
    numbers: Any = np.asarray([count, len(kept) - count], np.int32)
    return CompactRows(host.pad_rows(coords[kept], capacity), *numbers, source)  # type: ignore[arg-type]


kept_rows = eagerly(kept_on_host)(compact_rows)


@in_either("axis")
def _stack(xp: Any, arrays: Sequence[Any], axis: int) -> Any:
    return xp.concatenate(arrays, axis=axis)


def stacked(arrays: Sequence[jax.Array], axis: int = 0) -> jax.Array:
    """Concatenate arrays; different dtypes are promoted by JAX's rules."""
    if len({array.dtype for array in arrays}) > 1:
        return jnp.concatenate(arrays, axis=axis)
    two = all(array.ndim == 2 for array in arrays)
    if two and _compat.is_traced(arrays) and _compat.is_evaluated(arrays):
        return join_rows(*arrays, axis=axis)
    return _stack(tuple(arrays), axis=axis)


def choose_capacity(capacity: int | None, bound: int, number: jax.Array) -> int:
    """Return the static capacity of a result: the user's choice, or a default.

    Args:
      capacity: the user's choice, which must be an integer of at least 1. None takes the default
        capacity for ``number`` in eager calls, and ``bound`` if ``number`` is traced.
      bound: a number of rows that always suffices.
      number: ``int32[]``, the number of rows that are needed.
    """
    if capacity is None:
        return bound if _compat.is_traced(number) else default_capacity(int(number))
    return check_capacity(capacity)


def unique_sites(rows: jax.Array, capacity: int | None) -> UniqueRows:
    """Return the distinct rows of ``rows``, sorted, in arrays of a static size.

    Args:
      rows: ``int32[N, 1 + D]``, may contain padding.
      capacity: rows of the result; None chooses it as :func:`choose_capacity` does, with bound N.
    """
    if known_on_cpu(rows):
        given = None if capacity is None else check_capacity(capacity)
        return to_device_of(rows, merge_rows(as_host_array(rows), given))
    if capacity is not None:
        return unique_rows(rows, choose_capacity(capacity, 0, rows))
    found = unique_rows(rows, rows.shape[0])
    return _resized(found, choose_capacity(None, rows.shape[0], found.count))


@functools.partial(jax.jit, static_argnames="capacity")
def _resized(found: UniqueRows, capacity: int) -> UniqueRows:
    """Return ``found`` with its array ``coords`` cut or padded to ``capacity`` rows."""
    if capacity == found.coords.shape[0]:
        return found
    rows = jnp.arange(capacity, dtype=jnp.int32)
    return found._replace(coords=found.coords.at[rows].get(mode="fill", fill_value=PAD))


def new_geometry(
    found: UniqueRows | CompactRows,
    sources: Sequence[VoxelGeometry],
    *,
    stride: Level | None = None,
    batch_size: int | None = None,
    level_capacities: tuple[tuple[Level, int], ...] = (),
    lost: jax.Array | None = None,
) -> VoxelGeometry:
    """Make the geometry of new rows, without attached maps; its ``drops`` count all lost rows.

    Args:
      found: the new rows.
      sources: the geometries that the rows come from.
      stride, batch_size: those of the new geometry; None takes those of the first source.
      level_capacities: capacities for later strided layers; pass only capacities that surely hold
        the new voxels.
      lost: ``int32[]``, number of rows that were lost before ``found`` was made.

    Raises:
      CapacityError: in an eager call, ``found`` lost rows.
      InputError: a source is one shard of a scene.
    """
    for source in sources:
        refuse_shard(source, "finding other voxels")
    stride = sources[0].stride if stride is None else stride
    check_overflow(found.count, found.num_dropped, stride)
    new = found.num_dropped if lost is None else found.num_dropped + lost
    drops = LostRows.total_of([source.drops for source in sources]).add(stride, new)
    return VoxelGeometry(
        found.coords,
        found.count,
        drops,
        None,
        stride,
        sources[0].batch_size if batch_size is None else batch_size,
        level_capacities=level_capacities,
    )


def joint_capacities(sources: Sequence[VoxelGeometry]) -> tuple[tuple[Level, int], ...]:
    """Return ``((level, capacity), ...)``, where a capacity is the sum over all sources.

    A level is given by its total stride. It is left out if a source has no capacity for it in
    :attr:`VoxelGeometry.level_capacities`.
    """
    planned = [dict(source.level_capacities) for source in sources]
    known = [level for level in planned[0] if all(level in sizes for sizes in planned)]
    return tuple((level, sum(sizes[level] for sizes in planned)) for level in known)


def refuse_lost_sites(lost: jax.Array, operation: str) -> None:
    """Raise :class:`InputError` if ``lost``, a number of sites out of range, is known and not 0.

    ``operation`` says in the message what leads to these sites.
    """
    if not _compat.is_traced(lost) and int(lost):
        raise InputError(
            f"{operation} leads to {int(lost)} sites with coordinates outside [-2**30, 2**30): "
            "shift the scene towards its own origin, or crop it first"
        )


def reduce_rows(
    features: jax.Array, inverse: jax.Array, capacity: int, reduction: Reduction
) -> jax.Array:
    """Merge the feature rows that have the same output row.

    Args:
      features: ``[N, C]``.
      inverse: ``int32[N]``, the output row of each input row, or -1 for none.
      capacity: number of output rows.
      reduction: ``mean``, ``sum``, ``max``, ``min`` or ``first`` (the earliest row). Half precision
        is summed in float32. Sums of 8- and 16-bit integers are int32, and means of integers are
        float32 (of 64-bit integers, float64).

    Returns:
      ``[capacity, C]``; output rows without an input row are zero.

    Raises:
      InputError: the reduction is unknown; in an eager call, a mean needs integers beyond 24 bits,
        or sums of integers exceed the dtype of the result. Traced sums wrap around.
    """
    check_known("reduction", reduction, REDUCTIONS)
    if reduction == "mean":
        check_mean_digits(features)
    if reduction == "sum":
        check_sum_range(features, lambda wide: _reduced(wide, inverse, capacity, "sum"))
    return _reduced(features, inverse, capacity, reduction)


@eagerly(reduce_on_host)
@functools.partial(jax.jit, static_argnames=("capacity", "reduction"))
def _reduced(
    features: jax.Array, inverse: jax.Array, capacity: int, reduction: Reduction
) -> jax.Array:
    row = jnp.where(inverse < 0, capacity, inverse)
    shape = (capacity, features.shape[1])
    dtype = features.dtype
    if reduction in ("mean", "sum"):
        wide = wide_fraction(dtype) if reduction == "mean" else accumulator(dtype)
        total = jnp.zeros(shape, wide).at[row].add(features.astype(wide), mode="drop")
        if reduction == "mean":
            number = jnp.zeros((capacity,), wide).at[row].add(jnp.ones((), wide), mode="drop")
            return (total / jnp.maximum(number, 1)[:, None]).astype(fraction_dtype(dtype))
        return total.astype(product_dtype(dtype))
    if reduction == "first":
        index = jnp.arange(features.shape[0], dtype=jnp.int32)
        first = jnp.full((capacity,), features.shape[0], jnp.int32).at[row].min(index, mode="drop")
        source = jnp.concatenate([features, jnp.zeros((1, features.shape[1]), dtype)])
        return source[first]
    low, high = limits(dtype)
    start = jnp.full(shape, low if reduction == "max" else high, dtype)
    target = start.at[row]
    merge = target.max if reduction == "max" else target.min
    merged = merge(features, mode="drop")
    touched = jnp.zeros((capacity,), bool).at[row].set(True, mode="drop")
    return jnp.where(touched[:, None], merged, jnp.zeros((), dtype))
