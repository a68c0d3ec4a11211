"""Halo: the feature rows of other devices that one part of a split scene reads.

A scene that is split over a mesh axis has a part of its voxels, a *shard*, on each device. A kernel
may reach voxels of another shard. So the kernel map of a shard reads an *extended* set: the shard's
own voxels and the voxels of other shards that its kernel reaches, in lexicographic order. Before a
layer runs, the features of the voxels of other shards are sent in *rounds*. A round is one
``ppermute``, in which a shard sends to at most one other shard. The layer itself is unchanged. JAX
transposes ``ppermute`` and indexing, so the gradient of a row that was sent comes back to the shard
that sent it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.errors import InputError
from voxax.geometry.row_operations import gathered

Round = tuple[tuple[int, int], ...]
"""``(sender, receiver)`` pairs of shards; a shard sends at most once and receives at most once."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Halo:
    """The exchange that collects the features of all input rows of a shard's kernel map.

    Attributes:
      send: one array ``int32[S]`` per round: the shard's own rows that it sends, then -1 up to the
        round's capacity S.
      source: ``int32[in_capacity]``, for each input row of the map, the index of its features in
        the concatenation of the shard's own rows and the rows received in each round; -1 in
        padding.
      schedule: for each round, the ``(sender, receiver)`` pairs of shards; static.
      shards: number of shards; static.
      own_capacity: number of feature rows of a shard, padding included; static.
      axis: name of the mapped mesh axis; static.
    """

    send: tuple[jax.Array, ...]
    source: jax.Array
    schedule: tuple[Round, ...] = dataclasses.field(metadata={"static": True})
    shards: int = dataclasses.field(metadata={"static": True})
    own_capacity: int = dataclasses.field(metadata={"static": True})
    axis: str = dataclasses.field(metadata={"static": True})

    def extend(self, features: jax.Array) -> jax.Array:
        """Exchange features with other shards; return those of all input rows of the kernel map.

        The result is ``[in_capacity, ...]``. Call this method where the mesh axis is mapped: inside
        ``jax.shard_map``, or inside ``jax.vmap`` with the name of the axis. ``jax.vmap`` works only
        if every shard takes part in every round, as after
        :meth:`voxax.parallel.SceneSplit.fitted`.

        Args:
          features: ``[own_capacity, ...]``, the features of the shard's own rows.

        Raises:
          InputError: ``features`` has another number of rows, or the mesh axis has another size
            than the number of shards.
        """
        if features.shape[0] != self.own_capacity:
            raise InputError(
                f"features of shape {features.shape} for a shard of capacity {self.own_capacity}: "
                f"expected [{self.own_capacity}, C]"
            )
        places = jax.lax.axis_size(self.axis)
        if places != self.shards:
            raise InputError(
                f"the scene was split into {self.shards} shards, the mesh's axis {self.axis!r} has "
                f"{places} places: split it with shards={places}"
            )
        if not self.schedule and self.source.shape[0] == self.own_capacity:
            return features  # nothing is borrowed: the extended set is the shard's own
        features, source, *send = _compat.vary_alike(features, self.source, *self.send)
        parts = [features]
        for pairs, rows in zip(self.schedule, send, strict=True):
            parts.append(jax.lax.ppermute(gathered(features, rows), self.axis, pairs))
        return gathered(jnp.concatenate(parts), source)


def split_axis(rows: Any) -> str | None:
    """Return the name of the mesh axis over which Voxels or a VoxelGeometry is split, or None."""
    return getattr(getattr(rows, "geometry", rows), "split_over", None)


def refuse_shard(rows: Any, operation: str) -> None:
    """Raise :class:`voxax.InputError` if ``rows`` is one shard of a scene.

    ``rows`` is Voxels or a VoxelGeometry. ``operation`` is the name, for the error message,
    of the operation that needs a whole scene.
    """
    axis = split_axis(rows)
    if axis is not None:
        raise InputError(
            f"{operation} needs the whole scene, these voxels are one shard of a scene that is "
            f"split over {axis!r}: do it before the scene is split, or after it is joined"
        )
