"""Which shard of a split scene owns which voxel, at every level."""

from __future__ import annotations

import numpy as np

from voxax.coords import PAD, Curve, bucket_capacity, host, sort_by_curve
from voxax.geometry import Plan
from voxax.geometry.host import neighbor_table


def owners_by_level(
    plan: Plan, levels: list[np.ndarray], shards: int, order: Curve
) -> list[np.ndarray]:
    """The shard of each voxel of each level.

    The scene's own voxels are cut along the order into pieces that differ by one voxel at most.
    A voxel of a coarser level goes to the first shard among those it is made from, so that features
    stay on their device from level to level but for the cut. (Cutting every level evenly would move
    whole regions: the number of coarse voxels to one fine voxel changes over a scan.)

    Args:
      plan: of the network.
      levels: its ``level_rows``, ``int32[N, 1 + D]`` each.
      shards: number of shards.
      order: along which voxels are cut, scene by scene.

    Returns:
      ``int32[N]`` for each level.
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
    return owners


def _cut(rows: np.ndarray, shards: int, order: Curve) -> np.ndarray:
    place = np.arange(len(rows))
    if order != "lexicographic":
        # Buckets, so that scenes of similar size share a compiled program.
        padded = host.pad_rows(rows, bucket_capacity(len(rows)))
        along = np.asarray(sort_by_curve(padded, order))
        assert (padded[along[len(rows) :], 0] == PAD).all()
        place[along[: len(rows)]] = np.arange(len(rows))
    return (place * shards // max(len(rows), 1)).astype(np.int32)
