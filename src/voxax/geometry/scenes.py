"""Scenes: joining them into a batch, and taking a batch apart."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.coords import PAD, CompactRows, compact_rows
from voxax.errors import InputError
from voxax.geometry.regroup import choose_capacity, gather_rows, joint_capacities, new_geometry
from voxax.geometry.voxels import Voxels


def batch(scenes: Sequence[Voxels], *, capacity: int | None = None) -> Voxels:
    """Join scenes into one batch; scene i of the k-th argument follows those before it.

    Args:
      scenes: voxels of the same stride and number of channels; empty scenes are welcome.
        Voxel size and origin are taken from the first.
      capacity: static rows; None buckets eagerly and takes the sum under ``jax.jit``.

    Raises:
      InputError: an empty list, or scenes of other strides or channels.
      CapacityError: eager, and the voxels do not fit ``capacity``. Traced overflow is counted
        in ``num_dropped``.
    """
    if not scenes:
        raise InputError("batch needs at least one Voxels, got an empty list")
    first = scenes[0]
    for v in scenes:
        if v.stride != first.stride or v.num_channels != first.num_channels:
            raise InputError(
                f"batch of stride {first.stride}, {first.num_channels} channels with stride "
                f"{v.stride}, {v.num_channels} channels: all must agree"
            )
    sizes = tuple(v.batch_size for v in scenes)
    coords = tuple(v.coords for v in scenes)
    sources = [v.geometry for v in scenes]
    number = functools.reduce(jnp.add, [v.count for v in scenes])
    capacity = choose_capacity(capacity, sum(v.capacity for v in scenes), number)
    found = _stacked(coords, sizes, capacity)
    geometry = new_geometry(
        found, sources, batch_size=sum(sizes), level_capacities=joint_capacities(sources)
    )
    features = gather_rows(jnp.concatenate([v.features for v in scenes]), found.source)
    return dataclasses.replace(first, geometry=geometry, features=features)


def unbatch(voxels: Voxels, *, capacity: int | None = None) -> list[Voxels]:
    """Every scene as a batch of one.

    Args:
      voxels: ``batch_size`` scenes.
      capacity: static rows of each; None takes the bucket of the largest scene eagerly, so that
        all scenes run the same programs, and the batch's capacity under ``jax.jit``.

    Raises:
      CapacityError: eager, and a scene does not fit ``capacity``. Traced overflow is counted
        in the scene's ``num_dropped``.
    """
    largest = jnp.max(_scene_sizes(voxels.coords, voxels.batch_size))
    capacity = choose_capacity(capacity, voxels.capacity, largest)
    return [_scene(voxels, index, capacity) for index in range(voxels.batch_size)]


def scene(voxels: Voxels, index: int) -> Voxels:
    """Scene ``index`` as a batch of one, with the batch's capacity.

    Raises:
      InputError: no such scene.
    """
    if not 0 <= index < voxels.batch_size:
        raise InputError(f"scene {index} of a batch of {voxels.batch_size}")
    return _scene(voxels, index, voxels.capacity)


def _scene(voxels: Voxels, index: int, capacity: int) -> Voxels:
    source = voxels.geometry
    found = _scene_rows(voxels.coords, jnp.asarray(index, jnp.int32), capacity)
    geometry = new_geometry(found, [source], batch_size=1, level_capacities=source.level_capacities)
    features = gather_rows(voxels.features, found.source)
    return dataclasses.replace(voxels, geometry=geometry, features=features)


@functools.partial(jax.jit, static_argnames=("sizes", "capacity"))
def _stacked(coords: tuple[jax.Array, ...], sizes: tuple[int, ...], capacity: int) -> CompactRows:
    """Batches one behind the other: scenes in order and sorted rows in each need no new sort."""
    moved, start = [], 0
    for rows, size in zip(coords, sizes, strict=True):
        moved.append(jnp.where(rows[:, :1] == PAD, PAD, rows.at[:, 0].add(start)))
        start += size
    stacked = jnp.concatenate(moved)
    return compact_rows(stacked, jnp.ones((stacked.shape[0],), bool), capacity)


@functools.partial(jax.jit, static_argnames="capacity")
def _scene_rows(coords: jax.Array, index: jax.Array, capacity: int) -> CompactRows:
    found = compact_rows(coords, coords[:, 0] == index, capacity)
    alone = jnp.where(found.coords == PAD, PAD, found.coords.at[:, 0].set(0))
    return found._replace(coords=alone)


@functools.partial(jax.jit, static_argnames="batch_size")
def _scene_sizes(coords: jax.Array, batch_size: int) -> jax.Array:
    """``int32[batch_size]``: voxels of every scene."""
    return jnp.zeros((batch_size,), jnp.int32).at[coords[:, 0]].add(1, mode="drop")
