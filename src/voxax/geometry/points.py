"""Points: a batch of point clouds under a static capacity."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Points:
    """Point clouds before voxelization.

    Attributes:
      positions: ``float[capacity, D]``.
      batch_index: ``int32[capacity]``, the scene of each point.
      features: ``[capacity, C]``.
      count: ``int32[]``; rows ``>= count`` are padding.
      batch_size: number of scenes; static.
    """

    positions: jax.Array
    batch_index: jax.Array
    features: jax.Array
    count: jax.Array
    batch_size: int = dataclasses.field(default=1, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.positions.shape[0]

    @property
    def valid(self) -> jax.Array:
        """``bool[capacity]``: rows that are points."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.count
