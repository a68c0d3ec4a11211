"""The shapes that voxels, with all that is attached to them, would have at another capacity."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

import jax

from voxax.coords import bucket_capacity
from voxax.geometry import VoxelGeometry, Voxels


def resized(voxels: Voxels, capacity: int) -> Voxels:
    """Voxels of ``ShapeDtypeStruct`` with ``capacity`` rows.

    The capacities of all levels keep their ratio to the input's, rounded up to a bucket.
    """
    old = voxels.capacity

    def rows(n: int) -> int:
        return capacity if n == old else bucket_capacity(-(-n * capacity // old))

    known = _capacities(voxels.geometry)

    def leaf(x: Any) -> jax.ShapeDtypeStruct:
        shape = x.shape
        if shape and shape[0] in known:
            shape = (rows(shape[0]), *shape[1:])
        return jax.ShapeDtypeStruct(shape, x.dtype)

    abstract = jax.tree.map(leaf, voxels)
    return dataclasses.replace(abstract, geometry=_levels(abstract.geometry, rows))


def largest_bucket(n: int) -> int:
    """The largest bucket of at most ``n`` rows; the smallest one if there is none."""
    buckets = buckets_up_to(n)
    return buckets[-1] if buckets else bucket_capacity(0)


def buckets_up_to(n: int) -> list[int]:
    """All bucket capacities of at most ``n`` rows, ascending."""
    found = [bucket_capacity(0)]
    while found[-1] < n:
        found.append(bucket_capacity(found[-1] + 1))
    return found[: bisect.bisect_right(found, n)]


def _capacities(geometry: VoxelGeometry) -> set[int]:
    known = {geometry.capacity, *(n for _, n in geometry.level_capacities)}
    if geometry.attached is not None:
        known |= {level.capacity for level in geometry.attached.levels}
    return known


def _levels(geometry: VoxelGeometry, rows: Any) -> VoxelGeometry:
    sizes = tuple((stride, rows(n)) for stride, n in geometry.level_capacities)
    attached = geometry.attached
    if attached is not None:
        levels = tuple(_levels(level, rows) for level in attached.levels)
        attached = dataclasses.replace(attached, levels=levels)
    return dataclasses.replace(geometry, level_capacities=sizes, attached=attached)
