"""Which scene goes to which shard."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

from voxax.coords import bucket_capacity
from voxax.errors import CapacityError, InputError


@dataclasses.dataclass(frozen=True)
class Packing:
    """Scenes by shard; made by :func:`pack_scenes`.

    Attributes:
      scenes: for each shard the indices of its scenes, ascending; may be empty.
      loads: for each shard its number of voxels.
      capacity: rows of every shard.
      scenes_per_shard: the largest number of scenes in a shard, at least 1: the static batch size
        of every shard.
    """

    scenes: tuple[tuple[int, ...], ...]
    loads: tuple[int, ...]
    capacity: int
    scenes_per_shard: int

    def part(self, places: Sequence[int]) -> tuple[tuple[int, ...], Packing]:
        """What a process with some of the shards has to load.

        Args:
          places: which shards, see :func:`voxax.parallel.places_of`.

        Returns:
          ``(indices, packing)``: the scenes' indices, and how these scenes, in that order, lie in
          the shards.
        """
        own = [self.scenes[place] for place in places]
        indices = tuple(sorted(i for shard in own for i in shard))
        position = {index: k for k, index in enumerate(indices)}
        scenes = tuple(tuple(position[i] for i in shard) for shard in own)
        loads = tuple(self.loads[place] for place in places)
        return indices, Packing(scenes, loads, self.capacity, self.scenes_per_shard)

    @property
    def padding(self) -> float:
        """Share of all rows that is padding, from 0 to 1: work that no voxel needs."""
        return 1.0 - sum(self.loads) / (self.capacity * len(self.loads))

    @property
    def waiting(self) -> float:
        """Share of the slowest shard's voxels that the mean shard lacks, from 0 to 1.

        What devices wait for each other if time grows with voxels and padding is skipped.
        """
        largest = max(self.loads)
        return 0.0 if largest == 0 else 1.0 - sum(self.loads) / (largest * len(self.loads))

    def __str__(self) -> str:
        return (
            f"{sum(len(s) for s in self.scenes)} scenes in {len(self.loads)} shards of "
            f"{min(self.loads):,} to {max(self.loads):,} voxels, capacity {self.capacity:,}: "
            f"{self.padding:.0%} padding, {self.waiting:.0%} waiting"
        )


def pack_scenes(counts: Sequence[int], shards: int, *, capacity: int | None = None) -> Packing:
    """Spread scenes over shards so that the fullest shard holds few voxels.

    Largest first, each to the emptiest shard. The fullest shard then holds at most 4/3 of what
    the best distribution would give it.

    Args:
      counts: voxels of each scene.
      shards: number of shards; shards without a scene are welcome.
      capacity: rows of every shard; None takes the bucket of the fullest. Processes that train
        together must come to the same packing, so all give the counts of all scenes.

    Raises:
      InputError: no shard, or a negative count.
      CapacityError: the fullest shard does not fit ``capacity``.

    Source: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969).
    """
    if shards < 1:
        raise InputError(f"scenes are packed into at least one shard, got {shards}")
    counts = [int(count) for count in counts]  # of NumPy's unsigned ones, -count would wrap
    if min(counts, default=0) < 0:
        raise InputError(f"a scene has at least 0 voxels, got {min(counts)}")
    emptiest = [(0, shard) for shard in range(shards)]
    scenes: list[list[int]] = [[] for _ in range(shards)]
    for index in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        load, shard = heapq.heappop(emptiest)
        scenes[shard].append(index)
        heapq.heappush(emptiest, (load + counts[index], shard))
    loads = [sum(counts[i] for i in shard) for shard in scenes]
    if capacity is None:
        capacity = bucket_capacity(max(loads))
    if max(loads) > capacity:
        raise CapacityError(
            f"the fullest of {shards} shards has {max(loads)} voxels, capacity is {capacity}: "
            f"give capacity={bucket_capacity(max(loads))} or more, more shards or fewer scenes"
        )
    most = max(1, *(len(shard) for shard in scenes))
    return Packing(tuple(tuple(sorted(s)) for s in scenes), tuple(loads), capacity, most)
