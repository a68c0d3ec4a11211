"""Points as rows of features, grouped by the voxel that each lies in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from voxax.geometry.regroup import reduce_rows


@dataclasses.dataclass(frozen=True)
class PointRows:
    """Features of points, of which those without a voxel (inverse -1) count as padding."""

    features: jax.Array
    inverse: jax.Array

    @property
    def valid(self) -> jax.Array:
        return self.inverse >= 0

    def replace_features(self, features: jax.Array) -> PointRows:
        cleared = jnp.where(self.valid[:, None], features, jnp.zeros((), features.dtype))
        return PointRows(cleared, self.inverse)

    def map(self, fn: Callable[[jax.Array], jax.Array]) -> PointRows:
        return self.replace_features(fn(self.features))


@jax.jit
def read_rows(values: jax.Array, inverse: jax.Array) -> jax.Array:
    """``values[inverse]``, zero where the inverse is -1."""
    row = jnp.where(inverse < 0, values.shape[0], inverse)
    return values.at[row].get(mode="fill", fill_value=0)


@functools.partial(jax.jit, static_argnames=("axes", "parts", "dtype"))
def decorate(
    features: jax.Array,
    positions: jax.Array,
    coords: jax.Array,
    inverse: jax.Array,
    size: jax.Array,
    origin: jax.Array,
    *,
    axes: tuple[int, ...],
    parts: tuple[bool, bool, bool],
    dtype: Any,
) -> jax.Array:
    """What the first layer sees of each point; zero where the inverse is -1.

    Args:
      features, positions: ``[N, C]`` and ``[N, D]``.
      coords: of the voxels, on ``axes``; ``size`` and ``origin`` have an entry for each.
      inverse: ``int32[N]``, the voxel of each point.
      parts: whether positions, offsets from the mean, and from the centre enter.

    Returns:
      ``[N, C + ...]``: features, then the parts in that order.
    """
    use_positions, use_mean_offset, use_centre_offset = parts
    member = (inverse >= 0)[:, None]
    positions = jnp.where(member, positions, jnp.zeros((), positions.dtype))
    centre = (coords[:, 1:].astype(positions.dtype) + 0.5) * size[None, :] + origin[None, :]
    columns = jnp.asarray(axes)
    from_centre = jnp.where(member, positions[:, columns] - read_rows(centre, inverse), 0)
    entries = [features]
    if use_positions:
        entries.append(positions)
    if use_mean_offset:
        # Means of offsets from the centre, not of positions: those may be large.
        near = positions.at[:, columns].set(from_centre)
        entries.append(near - read_rows(reduce_rows(near, inverse, len(coords), "mean"), inverse))
    if use_centre_offset:
        entries.append(from_centre)
    together = jnp.concatenate([entry.astype(dtype) for entry in entries], axis=1)
    return jnp.where(member, together, jnp.zeros((), dtype))
