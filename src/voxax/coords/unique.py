"""Fewer rows under a static capacity: those under a mask, or distinct ones."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.lattice import PAD
from voxax.coords.ordering import is_valid, sort_distinct, sort_rows, sorts_natively
from voxax.coords.tile_lookup import find_numbers


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
    first = valid & jnp.concatenate([jnp.ones_like(valid[:1]), differs])
    rank = jnp.cumsum(first, dtype=jnp.int32) - 1
    total = jnp.sum(first, dtype=jnp.int32)
    kept = valid & (rank < capacity)
    operands = sorted_coords, jnp.where(kept & first, rank, -1), order, jnp.where(kept, rank, -1)
    by_scatter = functools.partial(_placed_by_scatter, capacity=capacity)
    # Tiles of a symbolic size cannot be counted.
    if _compat.is_symbolic(coords.shape[0], capacity) or not (coords.shape[0] and capacity):
        out, inverse = by_scatter(*operands)
    else:
        by_tiles = functools.partial(_placed_by_tiles, capacity=capacity)
        out, inverse = jax.lax.platform_dependent(*operands, tpu=by_tiles, default=by_scatter)
    count = jnp.minimum(total, capacity)
    return UniqueRows(out, count, total - count, inverse)


def _placed_by_scatter(
    rows: jax.Array, place: jax.Array, order: jax.Array, rank: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """``(int32[capacity, W], int32[N])``: rows at their places, and ranks in the order before.

    Args:
      rows: ``int32[N, W]``, sorted.
      place: ``int32[N]``, of distinct rows, ascending; -1 for others.
      order: ``int32[N]``, where each sorted row was.
      rank: ``int32[N]``, its value in the inverse.
      capacity: static.
    """
    out = jnp.full((capacity, rows.shape[1]), PAD, jnp.int32)
    out = out.at[jnp.where(place < 0, capacity, place)].set(rows, mode="drop")
    inverse = jnp.full((rows.shape[0],), -1, jnp.int32).at[order].set(rank, unique_indices=True)
    return out, inverse


def _placed_by_tiles(
    rows: jax.Array, place: jax.Array, order: jax.Array, rank: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Results of :func:`_placed_by_scatter` without a scatter, which TPUs do row after row.

    For 65,536 rows both scatters take 1 ms on v5e and 200 ms on v4, by the compiler's schedules.
    """
    at = find_numbers(place[None], capacity)[0]
    out = jnp.where(at[:, None] < 0, PAD, rows.at[at].get(mode="clip"))
    return out, sort_distinct(order, rank, num_keys=1)[1]


def _unique_rows_natively(coords: jax.Array, capacity: int) -> UniqueRows:
    """Distinct rows by one native call; see ``native/src/unique.cc``."""
    rows, width = coords.shape
    shapes = UniqueRows((capacity, width), (), (), (rows,))  # type: ignore[arg-type]
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    return UniqueRows(*library_call("voxax_unique_rows", results, coords))


_find_unique = natively_on_cpu("unique_rows", _unique_rows_natively, _unique_rows)
