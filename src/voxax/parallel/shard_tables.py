"""One kernel map of a scene, taken apart by the shard that owns its output rows."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class OwnRows:
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
    def of(cls, owner: np.ndarray, shards: int) -> OwnRows:
        together = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=shards))
        rows = np.split(together, ends[:-1])
        place = np.empty(len(owner), np.int32)
        for own in rows:
            place[own] = np.arange(len(own))
        return cls(owner, rows, place)


@dataclasses.dataclass(frozen=True)
class ShardTable:
    """What one shard computes of a map.

    Attributes:
      table: ``int32[own outputs, K]``, row of ``extended``, or -1.
      extended: rows of the scene's input level that the shard has or reads, ascending.
      borrowed: ``{shard: rows of the scene's input level that it lends, ascending}``.
    """

    table: np.ndarray
    extended: np.ndarray
    borrowed: dict[int, np.ndarray]


def shard_tables(table: np.ndarray, inputs: OwnRows, outputs: OwnRows) -> list[ShardTable]:
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
