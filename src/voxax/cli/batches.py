"""The scenes of one training step, in the shards that its devices take."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.cli.scenes import Prepare
from voxax.errors import CapacityError
from voxax.geometry import Voxels
from voxax.io.augment import Transform
from voxax.io.examples import Preparation

# Where levels do not fit, shards grow by a bucket at a time, at most so often: four are an octave.
_GROWTHS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """What a trainer steps on, and where each scene's points are in it.

    Attributes:
      voxels: planned voxels with arrays ``[shards, ...]``; without that axis where there is one
        shard only.
      labels: ``int32[shards, capacity]`` or ``int32[capacity]``, -1 where padding or unlabelled.
      rows: for each scene ``int[N]``, each point's row among all rows of all shards.
      point_labels: for each scene ``int32[N]`` or None.
    """

    voxels: Voxels
    labels: np.ndarray
    rows: tuple[np.ndarray, ...]
    point_labels: tuple[np.ndarray | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PrepareBatch:
    """Task: scenes, packed by their voxels into shards of one capacity, with the plan's maps.

    Attributes:
      scenes: clouds, or the tasks that make them.
      seeds: of each scene's augmentation; None leaves it as it is.
      preparation: its plan and ``min_capacity`` are those of a shard.
      shards: number of devices.
      most: scenes of the fullest step, the static batch size of every shard: however scenes are
        packed, the shapes are the same.
      transform: see :class:`voxax.cli.scenes.Prepare`.
    """

    scenes: tuple[Any, ...]
    seeds: tuple[int | None, ...]
    preparation: Preparation
    shards: int
    most: int
    transform: Transform | None = None

    def __call__(self) -> Batch:
        import jax

        from voxax.coords import bucket_capacity
        from voxax.parallel import pack_scenes, shard_scenes

        bare = dataclasses.replace(self.preparation, plan=None, min_capacity=0)
        examples = [
            Prepare(scene, bare, seed, self.transform)()
            for scene, seed in zip(self.scenes, self.seeds, strict=True)
        ]
        counts = [int(e.voxels.count) for e in examples]
        packing = pack_scenes(counts, self.shards)
        capacity = bucket_capacity(max(packing.capacity, self.preparation.min_capacity))
        for growth in range(_GROWTHS + 1):
            packing = dataclasses.replace(packing, capacity=capacity, scenes_per_shard=self.most)
            try:
                voxels, labels = shard_scenes(
                    [e.voxels for e in examples],
                    packing,
                    labels=[e.labels for e in examples],
                    plan=self.preparation.plan,
                )
                break
            except CapacityError:
                if growth == _GROWTHS:
                    raise
                capacity = bucket_capacity(capacity + 1)
        starts = np.zeros(len(examples), np.int64)
        for shard, indices in enumerate(packing.scenes):
            row = shard * capacity
            for index in indices:
                starts[index] = row
                row += counts[index]
        if self.shards == 1:
            voxels, labels = jax.tree.map(lambda x: x[0], (voxels, labels))
        return Batch(
            voxels,
            labels,
            tuple(start + e.inverse for start, e in zip(starts, examples, strict=True)),
            tuple(e.point_labels for e in examples),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class MakeTask:
    """Scenes of a step, and seeds, to the task that prepares them; picklable."""

    preparation: Preparation
    batch_size: int
    shards: int
    transform: Transform | None = None

    def __call__(self, scenes: Sequence[Any], seeds: Sequence[int | None]) -> Any:
        if self.batch_size == 1:
            return Prepare(scenes[0], self.preparation, seeds[0], self.transform)
        return PrepareBatch(
            tuple(scenes),
            tuple(seeds),
            self.preparation,
            self.shards,
            self.batch_size,
            self.transform,
        )
