"""Assignment of whole scenes to devices (shards) of similar load, and stacking of their arrays."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from voxax.coords import PAD, bucket_capacity
from voxax.errors import CapacityError, InputError
from voxax.geometry import Plan, Voxels
from voxax.geometry.host import host_geometry


@dataclasses.dataclass(frozen=True)
class Packing:
    """An assignment of scenes to shards, one shard for each device; see :func:`pack_scenes`.

    Attributes:
      scenes: for each shard the indices of its scenes, ascending; a shard may have no scene.
      loads: for each shard its number of voxels.
      capacity: number of rows of every shard, with padding.
      scenes_per_shard: the largest number of scenes in a shard, at least 1: the static batch size
        of every shard.
    """

    scenes: tuple[tuple[int, ...], ...]
    loads: tuple[int, ...]
    capacity: int
    scenes_per_shard: int

    def part(self, places: Sequence[int]) -> tuple[tuple[int, ...], Packing]:
        """Return the scenes that one process has to load, and their packing into its shards.

        Args:
          places: numbers of the process's shards, see :func:`voxax.parallel.places_of`.

        Returns:
          ``(indices, packing)``: the indices of the process's scenes, ascending, and a packing
          whose scene ``k`` is ``indices[k]`` and whose shards are the process's shards.
        """
        own = [self.scenes[place] for place in places]
        indices = tuple(sorted(i for shard in own for i in shard))
        position = {index: k for k, index in enumerate(indices)}
        scenes = tuple(tuple(position[i] for i in shard) for shard in own)
        loads = tuple(self.loads[place] for place in places)
        return indices, Packing(scenes, loads, self.capacity, self.scenes_per_shard)

    @property
    def padding(self) -> float:
        """Share of the rows of all shards that are padding, from 0 to 1."""
        return 1.0 - sum(self.loads) / (self.capacity * len(self.loads))

    @property
    def waiting(self) -> float:
        """Average share of a step in which a device waits for the fullest shard, from 0 to 1.

        The estimate assumes that time is proportional to voxels and that padding costs nothing.
        """
        largest = max(self.loads)
        return 0.0 if largest == 0 else 1.0 - sum(self.loads) / (largest * len(self.loads))

    def __str__(self) -> str:
        return (
            f"{sum(len(s) for s in self.scenes)} scenes in {len(self.loads)} shards of "
            f"{min(self.loads):,} to {max(self.loads):,} voxels, capacity {self.capacity:,}: "
            f"{self.padding:.0%} padding, {self.waiting:.0%} waiting"
        )


def pack_scenes(
    counts: Sequence[int], shards: int, *, capacity: int | None = None, most: int | None = None
) -> Packing:
    """Assign scenes to shards so that the shards have similar numbers of voxels.

    Scenes are assigned in descending order of size, each to the emptiest shard. The fullest shard
    then has at most 4/3 of the voxels that it has in the best assignment (without ``most``).
    Processes that train together need the same packing, so every process must pass the counts of
    all scenes.

    Args:
      counts: number of voxels of each scene.
      shards: number of shards; a shard may have no scene.
      capacity: number of rows of every shard; None takes the smallest standard size
        (:func:`voxax.coords.bucket_capacity`) that holds the fullest shard.
      most: largest number of scenes of a shard; None sets no limit.

    Raises:
      InputError: no shard, a negative count, or more than ``most * shards`` scenes.
      CapacityError: the fullest shard does not fit ``capacity``.

    Source: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969).
    """
    if shards < 1:
        raise InputError(f"scenes are packed into at least one shard, got {shards}")
    counts = [int(count) for count in counts]  # -count of NumPy's unsigned integers would wrap
    if min(counts, default=0) < 0:
        raise InputError(f"a scene has at least 0 voxels, got {min(counts)}")
    if most is not None and len(counts) > most * shards:
        raise InputError(
            f"{len(counts)} scenes for {shards} shards of at most {most}: give more shards or a "
            "larger most="
        )
    emptiest = [(0, shard) for shard in range(shards)]
    scenes: list[list[int]] = [[] for _ in range(shards)]
    for index in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        load, shard = heapq.heappop(emptiest)
        scenes[shard].append(index)
        if len(scenes[shard]) != most:
            heapq.heappush(emptiest, (load + counts[index], shard))
    loads = [sum(counts[i] for i in shard) for shard in scenes]
    if capacity is None:
        capacity = bucket_capacity(max(loads))
    if max(loads) > capacity:
        raise CapacityError(
            f"the fullest of {shards} shards has {max(loads)} voxels, capacity is {capacity}: "
            f"give capacity={bucket_capacity(max(loads))} or more, more shards or fewer scenes"
        )
    fullest = max(1, *(len(shard) for shard in scenes))
    return Packing(tuple(tuple(sorted(s)) for s in scenes), tuple(loads), capacity, fullest)


def shard_scenes(
    scenes: Sequence[Voxels],
    packing: Packing,
    *,
    labels: Sequence[np.ndarray] | None = None,
    plan: Plan | None = None,
    like: Voxels | None = None,
) -> tuple[Voxels, np.ndarray]:
    """Stack packed scenes into voxels and labels whose arrays have a leading axis of shards.

    Each shard is a batch of ``packing.scenes_per_shard`` scenes, some perhaps empty, with
    ``packing.capacity`` rows. The function uses only NumPy, so it can run in workers of an input
    pipeline.

    Args:
      scenes: concrete voxels, one scene each, of equal stride, channels and dtype. Voxel size and
        origin are taken from the first scene; attached plans are dropped.
      packing: the packing of these scenes, see :func:`pack_scenes`.
      labels: for each scene ``int[rows]`` with a label for each voxel, negative if unknown; rows
        after the last voxel are ignored. None makes all labels unknown.
      plan: a fitted plan, whose kernel maps are attached to each shard with the same capacities;
        None attaches no maps.
      like: any voxels with the stride, channels and dtype of the scenes, for a process whose shards
        are all empty. None takes the first scene.

    Returns:
      ``(voxels, labels)``. The arrays of ``voxels`` are ``[shards, ...]``; use its properties only
      inside ``jax.shard_map``, which splits the first axis. ``labels`` is
      ``int32[shards, capacity]``, with -1 for padding and unknown labels.

    Raises:
      InputError: neither a scene nor ``like`` is given; scenes differ in stride, channels or dtype;
        a scene is a batch; the packing is of other scenes; labels are too few or not integers; the
        plan was not fitted.
      CapacityError: a scene has dropped voxels, or a level of a shard exceeds the plan's capacity.
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
    """Check the arguments of :func:`shard_scenes`; return ``like``, or else the first scene."""
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
        checked_labels(own, counts[index], f"labels of scene {index}", "its")
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


def checked_labels(labels: Any, count: int, name: str, whose: str) -> np.ndarray:
    """Return ``labels`` as an array of ``count`` or more integers.

    Raise :class:`InputError` for other labels. ``name`` and ``whose`` are words of its message: a
    name for the labels, and whose voxels have them, such as ``"the scene's"``.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) < count or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{name} are {array.dtype}{list(array.shape)}: expected integers, one for each of "
            f"{whose} {count} voxels or more"
        )
    return array


def _joined(parts: Sequence[Voxels], like: Voxels, packing: Packing) -> Voxels:
    """Return the scenes ``parts`` of one shard as a batch, with the channels and dtype of ``like``.

    The batch has ``packing.capacity`` rows and ``packing.scenes_per_shard`` scenes, of which those
    after ``parts`` are empty.
    """
    rows = [np.zeros((0, like.coords.shape[1]), np.int32)]
    features = np.zeros((packing.capacity, like.num_channels), like.features.dtype)
    start = 0
    for scene, v in enumerate(parts):
        coords = np.asarray(v.coords)
        coords = coords[coords[:, 0] != PAD].copy()
        coords[:, 0] = scene  # first in the sort order, so sorted scenes stay sorted together
        rows.append(coords)
        features[start : start + len(coords)] = np.asarray(v.features)[: len(coords)]
        start += len(coords)
    # The level capacities of one scene are dropped, because they would not hold a shard.
    geometry = host_geometry(
        np.concatenate(rows),
        packing.capacity,
        {like.stride: 0},
        like.stride,
        packing.scenes_per_shard,
    )
    return dataclasses.replace(like, geometry=geometry, features=features)  # type: ignore[arg-type]
