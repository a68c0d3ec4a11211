"""Scenes to one array by shard, in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from voxax.coords import PAD
from voxax.errors import InputError
from voxax.geometry import Plan, Voxels
from voxax.geometry.host import host_geometry
from voxax.parallel.packing import Packing


def shard_scenes(
    scenes: Sequence[Voxels],
    packing: Packing,
    *,
    labels: Sequence[np.ndarray] | None = None,
    plan: Plan | None = None,
    like: Voxels | None = None,
) -> tuple[Voxels, np.ndarray]:
    """Voxels and labels whose every array has a leading axis of shards.

    Each shard is a batch of ``packing.scenes_per_shard`` scenes, some perhaps empty, with
    ``packing.capacity`` rows. Runs in NumPy, so in workers of an input pipeline too.

    Args:
      scenes: concrete voxels of one stride, one scene each, of equal channels and dtype. Voxel
        size and origin are taken from the first; plans attached to them are left behind.
      packing: of these scenes, see :func:`pack_scenes`.
      labels: for each scene ``int[rows]`` of at least its voxels, negative where unknown.
      plan: fitted; its kernel maps are attached to each shard, all with the same capacities.
      like: voxels of the same kind, whichever, for a process whose shards are all empty: where
        there is no scene, they say what the scenes of others are like. None takes the first.

    Returns:
      ``(voxels, labels)``: voxels with arrays ``[shards, ...]``, to be taken apart by
      ``jax.shard_map`` (their own properties are meaningless before), and
      ``int32[shards, capacity]``, -1 where padding or unknown.

    Raises:
      InputError: no scene and no ``like``; scenes of several strides, channels or batch sizes;
        other scenes than the packing's; labels that are no integers or too few; or a plan that
        was not fitted.
      CapacityError: a level of the plan does not fit the capacity that it was fitted for.
    """
    like = _check(scenes, packing, labels, like)
    if plan is not None and plan.fit is None:
        raise InputError(
            "shards share one program, so all need the same capacities at every level: give a "
            "fitted plan, Plan.record(model, voxels).fitted(samples)"
        )
    parts, known = [], np.full((len(packing.scenes), packing.capacity), -1, np.int32)
    for shard, indices in enumerate(packing.scenes):
        voxels = _joined([scenes[i] for i in indices], like, packing)
        parts.append(voxels if plan is None else plan.attach(voxels, grow=False))
        if labels is not None and indices:
            rows = [np.asarray(labels[i])[: int(scenes[i].count)] for i in indices]
            known[shard, : packing.loads[shard]] = np.maximum(np.concatenate(rows), -1)
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts), known


def _check(scenes: Sequence[Voxels], packing: Packing, labels: Any, like: Voxels | None) -> Voxels:
    """Voxels of the kind that all scenes are."""
    if not scenes and like is None:
        raise InputError(
            "no scene, so channels and dtype are not known: give like=, any voxels of that kind"
        )
    if labels is not None and len(labels) != len(scenes):
        raise InputError(f"{len(labels)} labels for {len(scenes)} scenes")
    first = scenes[0] if like is None else like
    for index, v in enumerate(scenes):
        if (v.stride, v.num_channels, v.features.dtype) != (
            first.stride,
            first.num_channels,
            first.features.dtype,
        ):
            raise InputError(
                f"scene {index} has stride {v.stride}, {v.num_channels} channels, "
                f"{v.features.dtype}; {'scene 0' if like is None else 'like'} has stride "
                f"{first.stride}, {first.num_channels} channels, {first.features.dtype}: all must "
                "agree"
            )
        if v.batch_size != 1:
            raise InputError(f"scene {index} is a batch of {v.batch_size}: use vx.unbatch first")
        if int(v.num_dropped):
            v.raise_if_overflowed()
    counts = [int(v.count) for v in scenes]
    for index, own in enumerate(labels or ()):
        shape, dtype = np.shape(own), np.asarray(own).dtype
        if len(shape) != 1 or shape[0] < counts[index] or not np.issubdtype(dtype, np.integer):
            raise InputError(
                f"labels of scene {index} are {dtype}{list(shape)}: expected integers, one for "
                f"each of its {counts[index]} voxels or more"
            )
    indices = sorted(i for shard in packing.scenes for i in shard)
    if indices != list(range(len(scenes))) or packing.loads != tuple(
        sum(counts[i] for i in shard) for shard in packing.scenes
    ):
        raise InputError(
            f"the packing is of {len(indices)} scenes with {sum(packing.loads)} voxels, these are "
            f"{len(scenes)} with {sum(counts)}: "
            "pack_scenes([int(v.count) for v in scenes], shards)"
        )
    return first


def _joined(parts: Sequence[Voxels], like: Voxels, packing: Packing) -> Voxels:
    """One shard: scenes in order, each sorted, are sorted together."""
    rows = [np.zeros((0, like.coords.shape[1]), np.int32)]
    features = np.zeros((packing.capacity, like.num_channels), like.features.dtype)
    start = 0
    for scene, v in enumerate(parts):
        coords = np.asarray(v.coords)
        coords = coords[coords[:, 0] != PAD].copy()
        coords[:, 0] = scene
        rows.append(coords)
        features[start : start + len(coords)] = np.asarray(v.features)[: len(coords)]
        start += len(coords)
    # Level capacities of one scene would not hold a shard: they are the plan's, or the shard's own.
    geometry = host_geometry(
        np.concatenate(rows),
        packing.capacity,
        {like.stride: 0},
        like.stride,
        packing.scenes_per_shard,
    )
    return dataclasses.replace(like, geometry=geometry, features=features)  # type: ignore[arg-type]
