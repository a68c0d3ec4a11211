"""Removing rows under a mask, under a static capacity, without sorting."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from voxax.coords.constants import PAD
from voxax.coords.ordering import is_valid


class CompactRows(NamedTuple):
    """Result of :func:`compact_rows`.

    Attributes:
      coords: ``int32[capacity, W]``, the rows that were kept in their old order, then ``PAD``.
      count: ``int32[]``, valid rows, at most the capacity.
      num_dropped: ``int32[]``, rows that should be kept but did not fit.
      source: ``int32[capacity]``, input row of every output row, -1 in padding.
    """

    coords: jax.Array
    count: jax.Array
    num_dropped: jax.Array
    source: jax.Array


# Jitted so that an eager call is one program instead of a dozen small ones.
@functools.partial(jax.jit, static_argnames="capacity")
def compact_rows(coords: jax.Array, keep: jax.Array, capacity: int) -> CompactRows:
    """Close the gaps between the rows to keep; sorted rows stay sorted.

    Args:
      coords: ``int32[N, W]``; padding is never kept and may lie anywhere.
      keep: ``bool[N]``.
      capacity: rows of the result, static; the first ones are kept when it is too small.
    """
    keep = keep & is_valid(coords)
    rows = coords.shape[0]
    place = jnp.where(keep, jnp.cumsum(keep, dtype=jnp.int32) - 1, capacity)
    source = jnp.full((capacity,), rows, jnp.int32)
    source = source.at[place].set(jnp.arange(rows, dtype=jnp.int32), mode="drop")
    total = jnp.sum(keep, dtype=jnp.int32)
    count = jnp.minimum(total, capacity)
    return CompactRows(
        coords.at[source].get(mode="fill", fill_value=PAD),
        count,
        total - count,
        jnp.where(source == rows, -1, source),
    )
