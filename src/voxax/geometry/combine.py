"""Joining and splitting Voxels: channels, coordinate sets, scenes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.coords import PAD, bucket_capacity, unique_rows
from voxax.errors import InputError
from voxax.geometry.build import check_overflow
from voxax.geometry.convert import reduce_rows
from voxax.geometry.voxel_geometry import Level, VoxelGeometry
from voxax.geometry.voxels import Voxels, require_same_geometry


def cat(voxels: Sequence[Voxels]) -> Voxels:
    """Concatenate channels of voxels on the same geometry.

    Raises:
      GeometryMismatchError: the coordinates differ.
      InputError: an empty list.
    """
    if not voxels:
        raise InputError("cat needs at least one Voxels, got an empty list")
    first, *rest = voxels
    geometry = first.geometry
    for other in rest:
        require_same_geometry(first, other, "cat")
        geometry = geometry.with_drops_of(other.geometry)
    features = jnp.concatenate([v.features for v in voxels], axis=1)
    return dataclasses.replace(first, geometry=geometry, features=features)


def union(a: Voxels, b: Voxels, *, capacity: int | None = None) -> Voxels:
    """Add over the union of two coordinate sets; a missing voxel counts as zero.

    Args:
      a, b: voxels of the same stride, batch size and number of channels.
      capacity: static rows; None buckets eagerly and takes the sum of both under ``jax.jit``.
    """
    if a.stride != b.stride or a.batch_size != b.batch_size:
        raise InputError(
            f"union of voxels of stride {a.stride}, batch size {a.batch_size} and stride "
            f"{b.stride}, batch size {b.batch_size}: both must agree"
        )
    if a.num_channels != b.num_channels:
        raise InputError(f"union of {a.num_channels} and {b.num_channels} channels")
    coords = jnp.concatenate([a.coords, b.coords])
    features = jnp.concatenate([a.features, b.features])
    return _regroup(a, coords, features, a.batch_size, capacity, [a.geometry, b.geometry])


def scene(voxels: Voxels, index: int) -> Voxels:
    """Scene ``index`` as a batch of one, with the batch's capacity.

    Raises:
      InputError: no such scene.
    """
    if not 0 <= index < voxels.batch_size:
        raise InputError(f"scene {index} of a batch of {voxels.batch_size}")
    mine = voxels.coords[:, :1] == index
    coords = jnp.where(mine, voxels.coords.at[:, 0].set(0), PAD)
    return _regroup(voxels, coords, voxels.features, 1, voxels.capacity, [voxels.geometry])


def batch(scenes: Sequence[Voxels], *, capacity: int | None = None) -> Voxels:
    """Join scenes into one batch; scene i of the k-th argument follows those before it.

    Args:
      scenes: voxels of the same stride and number of channels; empty scenes are welcome.
      capacity: static rows; None buckets eagerly and takes the sum under ``jax.jit``.
    """
    if not scenes:
        raise InputError("batch needs at least one Voxels, got an empty list")
    first = scenes[0]
    coords, start = [], 0
    for v in scenes:
        if v.stride != first.stride or v.num_channels != first.num_channels:
            raise InputError(
                f"batch of stride {first.stride}, {first.num_channels} channels with stride "
                f"{v.stride}, {v.num_channels} channels: all must agree"
            )
        coords.append(jnp.where(v.valid[:, None], v.coords.at[:, 0].add(start), PAD))
        start += v.batch_size
    features = jnp.concatenate([v.features for v in scenes])
    geometries = [v.geometry for v in scenes]
    return _regroup(first, jnp.concatenate(coords), features, start, capacity, geometries)


def _joint_capacities(sources: Sequence[VoxelGeometry]) -> tuple[tuple[Level, int], ...]:
    """Level capacities that hold the voxels of all sources; a level unknown to one is left out."""
    planned = [dict(source.level_capacities) for source in sources]
    known = [level for level in planned[0] if all(level in sizes for sizes in planned)]
    return tuple((level, sum(sizes[level] for sizes in planned)) for level in known)


def _regroup(
    like: Voxels,
    coords: jax.Array,
    features: jax.Array,
    batch_size: int,
    capacity: int | None,
    sources: Sequence[VoxelGeometry],
) -> Voxels:
    if capacity is None:
        capacity = coords.shape[0]
        if not _compat.is_traced(coords):
            capacity = bucket_capacity(int(unique_rows(coords, capacity).count))
    unique = unique_rows(coords, capacity)
    check_overflow(unique.count, unique.num_dropped, like.stride)
    levels = {level for source in sources for level in source.drops}
    zero = jnp.zeros((), jnp.int32)
    drops = {lv: sum((s.drops.get(lv, zero) for s in sources), zero) for lv in levels}
    drops[like.stride] = drops.get(like.stride, zero) + unique.num_dropped
    geometry = VoxelGeometry(
        unique.coords,
        unique.count,
        drops,
        None,
        like.stride,
        batch_size,
        level_capacities=_joint_capacities(sources),
    )
    merged = reduce_rows(features, unique.inverse, capacity, "sum")
    return dataclasses.replace(like, geometry=geometry, features=merged)
