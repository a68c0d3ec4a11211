"""Canonical (lexicographic) order of coordinate rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.coords.constants import PAD


def is_valid(coords: jax.Array) -> jax.Array:
    """``bool[N]``: rows that are not padding. ``coords``: ``int32[N, 1 + D]``."""
    return coords[:, 0] != PAD


def rows_less(a: jax.Array, b: jax.Array) -> jax.Array:
    """Lexicographic ``a < b`` over the last axis; ``int32[..., W]`` each."""
    less = a[..., -1] < b[..., -1]
    for axis in range(a.shape[-1] - 2, -1, -1):
        less = (a[..., axis] < b[..., axis]) | ((a[..., axis] == b[..., axis]) & less)
    return less


def sort_rows(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sort rows lexicographically, padding last, keeping the order of equal rows.

    Args:
      coords: ``int32[N, W]``.

    Returns:
      ``(sorted_coords int32[N, W], order int32[N])`` with
      ``sorted_coords == coords[order]``.
    """
    rows, width = coords.shape
    columns = tuple(coords[:, axis] for axis in range(width))
    *columns, order = jax.lax.sort(
        (*columns, jnp.arange(rows, dtype=jnp.int32)), num_keys=width, is_stable=True
    )
    return jnp.stack(columns, axis=1), order
