"""Halo: the rows of other shards that a map of one shard reads, and how they get there.

A scene that is split over a mesh axis has a piece of its voxels on each device. A kernel reaches
over the cut, so each map of a shard reads an *extended* set: the shard's own voxels and, in
canonical order among them, those of other shards that its taps touch. Before a layer the features
of these travel in *rounds*, one ``ppermute`` each, in which a shard sends to one other at most; the
layer itself is the ordinary one. ``ppermute`` and indexing are linear, and JAX transposes them: the
gradient of a row that was lent out comes back to its owner.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.errors import InputError

Round = tuple[tuple[int, int], ...]
"""``(sender, receiver)`` pairs of shards; each shard is at most one sender and one receiver."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Halo:
    """The source of each input row of a shard's map.

    Attributes:
      send: for each round ``int32[its capacity]``: own rows that are sent, -1 after the last.
      source: ``int32[in_capacity]``: for each row of the extended set its place in the shard's own
        rows followed by those received, round by round; -1 in padding.
      schedule: the exchange schedule, each round's pairs of shards; static.
      shards: number of shards; static.
      own_capacity: rows of the features that a shard holds; static.
      axis: name of the mapped axis; static.
    """

    send: tuple[jax.Array, ...]
    source: jax.Array
    schedule: tuple[Round, ...] = dataclasses.field(metadata={"static": True})
    shards: int = dataclasses.field(metadata={"static": True})
    own_capacity: int = dataclasses.field(metadata={"static": True})
    axis: str = dataclasses.field(metadata={"static": True})

    def extend(self, features: jax.Array) -> jax.Array:
        """Features ``[own_capacity, ...]`` to ``[in_capacity, ...]`` of the extended set.

        Runs where the axis is mapped: inside ``jax.shard_map``, or ``jax.vmap`` with its name,
        which permutes only where every shard takes part in every round (as in a fitted split).

        Raises:
          InputError: other rows, or an axis with another number of places than there are shards.
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
            parts.append(jax.lax.ppermute(_taken(features, rows), self.axis, pairs))
        return _taken(jnp.concatenate(parts), source)


def _taken(features: jax.Array, rows: jax.Array) -> jax.Array:
    """``features[rows]``, zero where ``rows`` is -1. No row but padding is taken twice."""
    index = jnp.where(rows < 0, features.shape[0], rows)
    return features.at[index].get(mode="fill", fill_value=0)


def split_axis(rows: Any) -> str | None:
    """The axis along which the scene of these Voxels (or Points, or a geometry) is split."""
    return getattr(getattr(rows, "geometry", rows), "split_over", None)


def refuse_shard(rows: Any, operation: str) -> None:
    """Raise :class:`voxax.InputError` for one shard of a scene: ``operation`` needs all of it."""
    axis = split_axis(rows)
    if axis is not None:
        raise InputError(
            f"{operation} needs the whole scene, these voxels are one shard of a scene that is "
            f"split over {axis!r}: do it before the scene is split, or after it is joined"
        )
