"""Select rows by a mask or remove duplicate rows, with results of a static size."""

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
    """The rows that :func:`compact_rows` kept.

    Attributes:
      coords: ``int32[capacity, W]``, the kept rows in their old order, then padding, ``PAD``.
      count: ``int32[]``, number of rows that are not padding, at most the capacity.
      num_dropped: ``int32[]``, number of rows to keep that exceed the capacity.
      source: ``int32[capacity]``, the input row of every output row, -1 in padding.
    """

    coords: jax.Array
    count: jax.Array
    num_dropped: jax.Array
    source: jax.Array


# Jitted so that an eager call is one program instead of a dozen small ones.
@functools.partial(jax.jit, static_argnames="capacity")
def compact_rows(coords: jax.Array, keep: jax.Array, capacity: int) -> CompactRows:
    """Return the rows where ``keep`` is True, without gaps and in the same order.

    Args:
      coords: ``int32[N, W]``. Padding may be anywhere and is never kept.
      keep: ``bool[N]``, which rows to keep.
      capacity: static number of rows of the result. If too small, only the first rows are kept.
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
    """The distinct rows that :func:`unique_rows` found.

    Attributes:
      coords: ``int32[capacity, W]``, sorted and distinct, then padding, ``PAD``.
      count: ``int32[]``, number of rows that are not padding, at most the capacity.
      num_dropped: ``int32[]``, number of distinct rows that exceed the capacity.
      inverse: ``int32[N]``, the output row of every input row, -1 if it is padding or was dropped.
    """

    coords: jax.Array
    count: jax.Array
    num_dropped: jax.Array
    inverse: jax.Array


# Jitted so that an eager call is one program instead of a dozen small ones.
@functools.partial(jax.jit, static_argnames="capacity")
def unique_rows(coords: jax.Array, capacity: int) -> UniqueRows:
    """Sort the rows of ``coords int32[N, W]``, which may contain padding, and remove duplicates.

    If there are more than ``capacity`` distinct rows, the lexicographically first ones are kept,
    and ``num_dropped`` counts the rest.
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
    # An array of symbolic size cannot be cut into tiles.
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
    """Return the distinct rows, and the output row of each input row, -1 for none.

    The first array is ``int32[capacity, W]``, with padding at the end. The second is ``int32[N]``;
    an input row has no output row if it is padding or exceeds the capacity.

    Args:
      rows: ``int32[N, W]``, sorted.
      place: ``int32[N]``, the output row of the first of equal rows, ascending; -1 for other rows.
      order: ``int32[N]``, the input row of each sorted row.
      rank: ``int32[N]``, the output row of each sorted row, or -1.
      capacity: number of output rows, static.
    """
    out = jnp.full((capacity, rows.shape[1]), PAD, jnp.int32)
    out = out.at[jnp.where(place < 0, capacity, place)].set(rows, mode="drop")
    inverse = jnp.full((rows.shape[0],), -1, jnp.int32).at[order].set(rank, unique_indices=True)
    return out, inverse


def _placed_by_tiles(
    rows: jax.Array, place: jax.Array, order: jax.Array, rank: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`_placed_by_scatter`, without its two scatters.

    For 65,536 rows these scatters take 1 ms on v5e and 200 ms on v4, by the compiler's schedules.
    """
    at = find_numbers(place[None], capacity)[0]
    out = jnp.where(at[:, None] < 0, PAD, rows.at[at].get(mode="clip"))
    return out, sort_distinct(order, rank, num_keys=1)[1]


def _unique_rows_natively(coords: jax.Array, capacity: int) -> UniqueRows:
    """Return the result of :func:`unique_rows`, by native code; see ``native/src/unique.cc``."""
    rows, width = coords.shape
    shapes = UniqueRows((capacity, width), (), (), (rows,))  # type: ignore[arg-type]
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    return UniqueRows(*library_call("voxax_unique_rows", results, coords))


_find_unique = natively_on_cpu("unique_rows", _unique_rows_natively, _unique_rows)
