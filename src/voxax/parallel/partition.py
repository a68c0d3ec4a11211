"""The partition of a scene: the shard of each voxel, and its part of each kernel map.

Each voxel of each level belongs to one shard, its owner. A kernel map is divided by the owners of
its output rows; the inputs that other shards own are borrowed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from voxax.coords import PAD, Curve, bucket_capacity, host, sort_by_curve
from voxax.geometry import Plan
from voxax.geometry.host import neighbor_table


@dataclasses.dataclass(frozen=True)
class LevelPartition:
    """Rows of one level by shard.

    Attributes:
      owner: ``int32[N]``, the shard of each row.
      rows: for each shard its rows, ascending: in canonical order.
      place: ``int32[N]``, where each row stands among its shard's.
    """

    owner: np.ndarray
    rows: list[np.ndarray]
    place: np.ndarray

    @classmethod
    def of(cls, owner: np.ndarray, shards: int) -> LevelPartition:
        together = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=shards))
        rows = np.split(together, ends[:-1])
        place = np.empty(len(owner), np.int32)
        for own in rows:
            place[own] = np.arange(len(own))
        return cls(owner, rows, place)


def partition_levels(
    plan: Plan, levels: list[np.ndarray], shards: int, order: Curve
) -> list[LevelPartition]:
    """The partition of each level.

    The scene's own voxels are cut along the order into pieces that differ by one voxel at most.
    A voxel of a coarser level goes to the first shard among those it is made from, so that features
    stay on their device from level to level but for the cut. (Cutting every level evenly would move
    whole regions: the number of coarse voxels to one fine voxel changes over a scan.)

    Args:
      plan: of the network.
      levels: its ``level_rows``, ``int32[N, 1 + D]`` each.
      shards: number of shards.
      order: along which voxels are cut, scene by scene.
    """
    owners = [_cut(levels[0], shards, order)]
    for rows, (parent, spec) in zip(levels[1:], plan.parents, strict=True):
        source, above = levels[parent], owners[parent]
        first = np.full(len(rows), shards, np.int32)
        if spec.generative:
            table = neighbor_table(source, rows, spec, len(source), len(rows))
            reached, tap = np.nonzero(table >= 0)
            np.minimum.at(first, reached, above[table[reached, tap]])
        else:
            _, of_source = host.unique_rows(host.coarsen(source, spec.stride))
            np.minimum.at(first, of_source, above)
        owners.append(first)
    return [LevelPartition.of(owner, shards) for owner in owners]


def _cut(rows: np.ndarray, shards: int, order: Curve) -> np.ndarray:
    place = np.arange(len(rows))
    if order != "lexicographic":
        # Buckets, so that scenes of similar size share a compiled program.
        padded = host.pad_rows(rows, bucket_capacity(len(rows)))
        along = np.asarray(sort_by_curve(padded, order))
        assert (padded[along[len(rows) :], 0] == PAD).all()
        place[along[: len(rows)]] = np.arange(len(rows))
    return (place * shards // max(len(rows), 1)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class ShardTable:
    """The part of a map that one shard computes.

    Attributes:
      table: ``int32[own outputs, K]``, row of ``extended``, or -1.
      extended: rows of the scene's input level that the shard has or reads, ascending.
      borrowed: ``{shard: rows of the scene's input level that it lends, ascending}``.
    """

    table: np.ndarray
    extended: np.ndarray
    borrowed: dict[int, np.ndarray]


def partition_map(
    table: np.ndarray, inputs: LevelPartition, outputs: LevelPartition
) -> list[ShardTable]:
    """A map's ``neighbors int32[N_out, K]`` of the whole scene, shard by shard."""
    found = []
    for shard, (own_out, own_in) in enumerate(zip(outputs.rows, inputs.rows, strict=True)):
        part = table[own_out]
        read = np.zeros(len(inputs.owner), bool)
        read[part[part >= 0]] = True
        read[own_in] = True
        extended = np.flatnonzero(read)
        place = np.cumsum(read, dtype=np.int32) - 1
        local = np.where(part < 0, -1, place[part]) if len(place) else part
        owner = inputs.owner[extended]
        lenders = np.flatnonzero(np.bincount(owner, minlength=1)).tolist()
        borrowed = {other: extended[owner == other] for other in lenders if other != shard}
        found.append(ShardTable(local.astype(np.int32), extended, borrowed))
    return found
