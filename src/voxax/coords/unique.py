"""Distinct rows of a coordinate list, under a static capacity."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.constants import PAD
from voxax.coords.ordering import is_valid, sort_rows, sorts_natively


class UniqueRows(NamedTuple):
    """Result of :func:`unique_rows`.

    Attributes:
      coords: ``int32[capacity, W]``, sorted, distinct, padded with ``PAD``.
      count: ``int32[]``, valid rows, at most the capacity.
      num_dropped: ``int32[]``, distinct rows that did not fit.
      inverse: ``int32[N]``, output row of every input row, -1 where padding or dropped.
    """

    coords: jax.Array
    count: jax.Array
    num_dropped: jax.Array
    inverse: jax.Array


# Jitted so that an eager call is one program instead of a dozen small ones.
@functools.partial(jax.jit, static_argnames="capacity")
def unique_rows(coords: jax.Array, capacity: int) -> UniqueRows:
    """Sort and remove duplicates. ``coords``: ``int32[N, W]``, any order, may hold padding.

    When more than ``capacity`` distinct rows exist, the lexicographically first
    ones are kept and the rest is counted in ``num_dropped``.
    """
    find = _find_unique if sorts_natively(coords) else _unique_rows
    return UniqueRows(*find(coords, capacity=capacity))


def _unique_rows(coords: jax.Array, capacity: int) -> UniqueRows:
    sorted_coords, order = sort_rows(coords)
    valid = is_valid(sorted_coords)
    differs = jnp.any(sorted_coords[1:] != sorted_coords[:-1], axis=1)
    first = valid & jnp.concatenate([jnp.ones((min(1, len(coords)),), bool), differs])
    rank = jnp.cumsum(first, dtype=jnp.int32) - 1
    total = jnp.sum(first, dtype=jnp.int32)
    kept = valid & (rank < capacity)
    row = jnp.where(kept, rank, capacity)
    out = jnp.full((capacity, coords.shape[1]), PAD, jnp.int32)
    out = out.at[jnp.where(first, row, capacity)].set(sorted_coords, mode="drop")
    inverse = jnp.full((coords.shape[0],), -1, jnp.int32)
    inverse = inverse.at[order].set(jnp.where(kept, rank, -1), unique_indices=True)
    count = jnp.minimum(total, capacity)
    return UniqueRows(out, count, total - count, inverse)


def _unique_rows_natively(coords: jax.Array, capacity: int) -> UniqueRows:
    """The same in one call; see ``native/src/unique.cc``."""
    rows, width = coords.shape
    shapes = UniqueRows((capacity, width), (), (), (rows,))  # type: ignore[arg-type]
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    return UniqueRows(*library_call("voxax_unique_rows", results, coords))


_find_unique = natively_on_cpu("unique_rows", _unique_rows_natively, _unique_rows)
