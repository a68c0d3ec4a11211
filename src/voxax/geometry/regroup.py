"""What every function that leads to a new coordinate set shares.

Rows of the new set are tied to those of a source by ``rows int32[capacity]``: the source's row
of each new one, or -1. Features follow by :func:`gather_rows`, which is linear and reads no
padding, so derivatives of any order are right and padding stays inert.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.coords import (
    PAD,
    CompactRows,
    UniqueRows,
    bucket_capacity,
    find_rows,
    is_valid,
    unique_rows,
)
from voxax.errors import InputError
from voxax.geometry.build import check_overflow
from voxax.geometry.halo import refuse_shard
from voxax.geometry.voxel_geometry import Level, VoxelGeometry
from voxax.geometry.voxels import Voxels


@jax.jit
def gather_rows(features: jax.Array, rows: jax.Array) -> jax.Array:
    """``features[rows]``, zero where ``rows`` is -1: ``[N, C]``, ``int32[...]`` to ``[..., C]``."""
    index = jnp.where(rows < 0, features.shape[0], rows)
    return features.at[index].get(mode="fill", fill_value=0)


@jax.jit
def rows_at(coords: jax.Array, queries: jax.Array) -> jax.Array:
    """``int32[M]``: row of each query in a canonical list, -1 where missing or padding."""
    return jnp.where(is_valid(queries), find_rows(coords, queries), -1)


@functools.partial(jax.jit, static_argnames="capacity")
def source_rows(targets: jax.Array, capacity: int) -> jax.Array:
    """Read ``targets int32[N]`` (each row's place or -1, no place twice) backwards.

    Returns:
      ``int32[capacity]``: which row went to each place, or -1.
    """
    place = jnp.where(targets < 0, capacity, targets)
    index = jnp.arange(targets.shape[0], dtype=jnp.int32)
    return jnp.full((capacity,), -1, jnp.int32).at[place].set(index, mode="drop")


def choose_capacity(capacity: int | None, bound: int, number: jax.Array) -> int:
    """The capacity given, checked; else a bucket of ``number`` eagerly, ``bound`` when traced.

    Args:
      capacity: what the user asked for.
      bound: rows that always suffice.
      number: ``int32[]``, rows that are needed.
    """
    if capacity is None:
        return bound if _compat.is_traced(number) else bucket_capacity(int(number))
    if operator.index(capacity) < 1:
        raise InputError(f"capacity={capacity} must be at least 1, also for zero voxels")
    return operator.index(capacity)


def unique_sites(rows: jax.Array, capacity: int | None) -> UniqueRows:
    """Distinct rows ``int32[N, 1 + D]`` under a capacity, sorted once.

    None chooses the capacity as :func:`choose_capacity` does; the bound is N.
    """
    if capacity is not None:
        return unique_rows(rows, choose_capacity(capacity, 0, rows))
    found = unique_rows(rows, rows.shape[0])
    return _resized(found, choose_capacity(None, rows.shape[0], found.count))


@functools.partial(jax.jit, static_argnames="capacity")
def _resized(found: UniqueRows, capacity: int) -> UniqueRows:
    """The same rows with more padding, or less."""
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
    """A geometry of its own: without attached maps, reporting what all its sources lost.

    Args:
      found: the new rows.
      sources: the geometries that they come from.
      stride, batch_size: of the new geometry; None takes the first source's.
      level_capacities: for later strided layers; only what is sure to hold the new voxels.
      lost: ``int32[]``, rows lost on the way to ``found``.

    Raises:
      CapacityError: eager, and ``found`` lost rows.
      InputError: a source is one shard of a scene.
    """
    for source in sources:
        refuse_shard(source, "finding other voxels")
    stride = sources[0].stride if stride is None else stride
    check_overflow(found.count, found.num_dropped, stride)
    by_level: dict[Level, dict[int, jax.Array]] = {}
    for source in sources:
        for level, number in source.drops.items():
            # A loss that two sources share counts once, as far as one array tells it.
            by_level.setdefault(level, {})[id(number)] = number
    drops = {
        level: functools.reduce(operator.add, numbers.values())
        for level, numbers in by_level.items()
    }
    new = found.num_dropped if lost is None else found.num_dropped + lost
    nothing_new = not _compat.is_traced(new) and int(new) == 0
    # The very array is kept where nothing was lost here: it tells a shared loss from a second one.
    if stride not in drops:
        drops[stride] = new
    elif not nothing_new:
        drops[stride] = drops[stride] + new
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
    """Level capacities that hold the voxels of all sources; a level unknown to one is left out."""
    planned = [dict(source.level_capacities) for source in sources]
    known = [level for level in planned[0] if all(level in sizes for sizes in planned)]
    return tuple((level, sum(sizes[level] for sizes in planned)) for level in known)


def refuse_lost_sites(lost: jax.Array, operation: str) -> None:
    """Raise :class:`InputError` when sites left the coordinate range and that can be known."""
    if not _compat.is_traced(lost) and int(lost):
        raise InputError(
            f"{operation} leads to {int(lost)} sites with coordinates outside [-2**30, 2**30): "
            "shift the scene towards its own origin, or crop it first"
        )


def same_lattice(voxels: Sequence[Voxels], operation: str) -> tuple[Any, Any]:
    """The ``(voxel_size, origin)`` that all operands agree on; an operand without is no matter.

    Raises:
      InputError: an empty list, or operands of another stride, batch size, voxel size or origin.
    """
    if not voxels:
        raise InputError(f"{operation} needs at least one Voxels, got an empty list")
    first = voxels[0]
    for other in voxels[1:]:
        for name in ("stride", "batch_size"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                raise InputError(
                    f"{operation} of voxels with {name}={ours} and {name}={theirs}: both must agree"
                )
    size, origin = (
        {getattr(v, name): None for v in voxels if getattr(v, name)}
        for name in ("voxel_size", "origin")
    )
    for name, values in (("voxel_size", size), ("origin", origin)):
        if len(values) > 1:
            raise InputError(
                f"{operation} of voxels with {name}={' and '.join(map(str, values))}: equal "
                "coordinates are different places; voxelize them alike"
            )
    return next(iter(size), ()), next(iter(origin), ())
