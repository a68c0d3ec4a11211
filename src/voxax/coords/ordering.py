"""Canonical (lexicographic) order of coordinate rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.constants import PAD

WIDEST = 5
"""Columns that the native functions take: the batch index and four axes."""


def sorts_natively(rows: jax.Array) -> bool:
    """Whether the native sort takes rows of this dtype and width."""
    return rows.dtype == jnp.int32 and 1 <= rows.shape[1] <= WIDEST


def is_valid(coords: jax.Array) -> jax.Array:
    """``bool[N]``: rows that are not padding. ``coords``: ``int32[N, 1 + D]``."""
    return coords[:, 0] != PAD


def rows_less(a: jax.Array, b: jax.Array) -> jax.Array:
    """Lexicographic ``a < b`` over the last axis; ``int32[..., W]`` each."""
    less = a[..., -1] < b[..., -1]
    for axis in range(a.shape[-1] - 2, -1, -1):
        less = (a[..., axis] < b[..., axis]) | ((a[..., axis] == b[..., axis]) & less)
    return less


@jax.jit
def sort_rows(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sort rows lexicographically, padding last, keeping the order of equal rows.

    Args:
      coords: ``int32[N, W]``.

    Returns:
      ``(sorted_coords int32[N, W], order int32[N])`` with
      ``sorted_coords == coords[order]``.
    """
    if not sorts_natively(coords):
        return _sort_columns(coords)
    ordered, order = _sort(coords)
    return ordered, order


def _sort_columns(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, width = coords.shape
    columns = tuple(coords[:, axis] for axis in range(width))
    *columns, order = jax.lax.sort(
        (*columns, jnp.arange(rows, dtype=jnp.int32)), num_keys=width, is_stable=True
    )
    return jnp.stack(columns, axis=1), order


def _sort_rows_natively(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same by a radix sort; see ``native/src/sort.cc``."""
    shape = jax.ShapeDtypeStruct(coords.shape[:1], jnp.int32)
    order = library_call("voxax_sort_rows", shape, coords)
    return coords.at[order].get(mode="promise_in_bounds", unique_indices=True), order


_sort = natively_on_cpu("sort_rows", _sort_rows_natively, _sort_columns)
