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
) -> tuple[Voxels, np.ndarray]:
    """Voxels and labels whose every array has a leading axis of shards.

    Each shard is a batch of ``packing.scenes_per_shard`` scenes, some perhaps empty, with
    ``packing.capacity`` rows. Runs in NumPy, so in workers of an input pipeline too.

    Args:
      scenes: concrete voxels at stride 1, one scene each, of equal channels and dtype.
      packing: of these scenes, see :func:`pack_scenes`.
      labels: for each scene ``int[capacity]`` of its rows, negative where unknown.
      plan: fitted; its kernel maps are attached to each shard, all with the same capacities.

    Returns:
      ``(voxels, labels)``: voxels with arrays ``[shards, ...]``, to be taken apart by
      ``jax.shard_map`` (their own properties are meaningless before), and
      ``int32[shards, capacity]``, -1 where padding or unknown.

    Raises:
      InputError: scenes of several strides, channels or batch sizes, other scenes than the
        packing's, or a plan that was not fitted.
      CapacityError: a level of the plan does not fit the capacity that it was fitted for.
    """
    _check(scenes, packing, labels)
    if plan is not None and plan.fit is None:
        raise InputError(
            "shards share one program, so all need the same capacities at every level: give a "
            "fitted plan, Plan.record(model, voxels).fitted(samples)"
        )
    parts, known = [], np.full((len(packing.scenes), packing.capacity), -1, np.int32)
    for shard, indices in enumerate(packing.scenes):
        voxels = _joined([scenes[i] for i in indices], scenes[0], packing)
        parts.append(voxels if plan is None else plan.attach(voxels, grow=False))
        if labels is not None and indices:
            rows = [np.asarray(labels[i])[: int(scenes[i].count)] for i in indices]
            known[shard, : packing.loads[shard]] = np.concatenate(rows)
    return jax.tree.map(lambda *arrays: np.stack(arrays), *parts), known


def _check(scenes: Sequence[Voxels], packing: Packing, labels: Any) -> None:
    if not scenes:
        raise InputError("shards are made of at least one scene, got none; it may be empty")
    if labels is not None and len(labels) != len(scenes):
        raise InputError(f"{len(labels)} labels for {len(scenes)} scenes")
    first = scenes[0]
    for index, v in enumerate(scenes):
        if (v.stride, v.num_channels, v.features.dtype) != (
            first.stride,
            first.num_channels,
            first.features.dtype,
        ):
            raise InputError(
                f"scene {index} has stride {v.stride}, {v.num_channels} channels, "
                f"{v.features.dtype}; scene 0 has stride {first.stride}, {first.num_channels} "
                f"channels, {first.features.dtype}: all must agree"
            )
        if v.batch_size != 1:
            raise InputError(f"scene {index} is a batch of {v.batch_size}: use vx.unbatch first")
        if int(v.num_dropped):
            v.raise_if_overflowed()
    counts = [int(v.count) for v in scenes]
    indices = sorted(i for shard in packing.scenes for i in shard)
    if indices != list(range(len(scenes))) or packing.loads != tuple(
        sum(counts[i] for i in shard) for shard in packing.scenes
    ):
        raise InputError(
            f"the packing is of {len(indices)} scenes with {sum(packing.loads)} voxels, these are "
            f"{len(scenes)} with {sum(counts)}: "
            "pack_scenes([int(v.count) for v in scenes], shards)"
        )


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
    geometry = host_geometry(
        np.concatenate(rows),
        packing.capacity,
        {like.stride: 0},
        like.stride,
        packing.scenes_per_shard,
        level_capacities=like.geometry.level_capacities,
    )
    return dataclasses.replace(like, geometry=geometry, features=features)  # type: ignore[arg-type]
