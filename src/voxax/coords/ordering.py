"""Sort coordinate rows into lexicographic (canonical) order, in which padding is last."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.lattice import PAD

WIDEST = 5
"""The largest number of columns that native functions support: batch index and four axes."""


RADIX_ROWS = 2**18
"""The number of rows from which GPUs sort by radix, see :func:`_sort_by_radix`.

In XLA's measurements on an H100, a radix sort with 64-bit keys is faster than a comparison sort
from 2**17 rows on. Rows of three axes need two radix sorts instead of one comparison sort.
"""


def sorts_natively(rows: jax.Array) -> bool:
    """Return whether the native sort supports the dtype and width of these rows."""
    return rows.dtype == jnp.int32 and 1 <= rows.shape[1] <= WIDEST


@_compat.as_one_program
def is_valid(coords: jax.Array) -> jax.Array:
    """Return ``bool[N]``: False for the rows of ``coords int32[N, 1 + D]`` that are padding."""
    return coords[:, 0] != PAD


def rows_less(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``bool[...]``: whether rows of ``a`` are lexicographically less than rows of ``b``.

    Both arrays are ``[..., W]``, with shapes that broadcast to each other.
    """
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
      ``(sorted_coords int32[N, W], order int32[N])`` with ``sorted_coords == coords[order]``.
    """
    if not sorts_natively(coords):
        return _sort_columns(coords)
    ordered, order = _sort(coords)
    return ordered, order


def sort_distinct(*columns: jax.Array, num_keys: int) -> tuple[jax.Array, ...]:
    """Return the columns of a table with its rows sorted by their distinct keys.

    The key of a row is its entries in the first ``num_keys`` columns; keys sort lexicographically.

    Args:
      columns: ``int32[N]`` each; row i is the i-th entry of all columns.
      num_keys: number of leading columns that are compared. No two rows may be equal in all of
        these columns, and no row may have the largest int32 in all of them.
    """
    rows = columns[0].shape[0]  # those of a symbolic size cannot be cut into tiles
    sort = _sort_by_xla if _compat.is_symbolic(rows) or not rows else _sort_distinct
    return sort(*columns, num_keys=num_keys)


def _sort_on_accelerators(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    if _compat.is_symbolic(coords.shape[0]) or coords.shape[0] < RADIX_ROWS:
        return _sort_columns(coords)
    gpus = {"cuda": _sort_by_radix, "rocm": _sort_by_radix}
    return jax.lax.platform_dependent(coords, default=_sort_columns, **gpus)


def _sort_by_radix(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`sort_rows`, by stable radix sorts of two columns at a time.

    The last two columns are sorted first. On GPUs XLA sorts by radix if there is one key and one
    value, and by comparison if there are more. Two columns of any range fit into a 64-bit key. To
    pack more columns, their range would be needed, and a branch on it would make the device wait
    for the host.
    """
    number, width = coords.shape
    order = jnp.arange(number, dtype=jnp.int32)
    with jax.enable_x64(True):
        unsigned = jax.lax.bitcast_convert_type(coords ^ jnp.int32(-(2**31)), jnp.uint32)
        for last in reversed(range(1 - width % 2, width, 2)):
            key = unsigned[:, last]
            if last:
                high = unsigned[:, last - 1].astype(jnp.uint64) << jnp.uint64(32)
                key = high | key.astype(jnp.uint64)
            key = key.at[order].get(mode="promise_in_bounds", unique_indices=True)
            _, order = jax.lax.sort((key, order), num_keys=1, is_stable=True)
    return coords.at[order].get(mode="promise_in_bounds", unique_indices=True), order


def _sort_columns(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, width = coords.shape
    columns = *(coords[:, axis] for axis in range(width)), jnp.arange(rows, dtype=jnp.int32)
    sort = sort_distinct if coords.dtype == jnp.int32 else _sort_by_xla
    *columns, order = sort(*columns, num_keys=width + 1)
    return jnp.stack(columns, axis=1), order


def _sort_rows_natively(coords: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`sort_rows`, by the radix sort in ``native/src/sort.cc``."""
    shape = jax.ShapeDtypeStruct(coords.shape[:1], jnp.int32)
    order = library_call("voxax_sort_rows", shape, coords)
    return coords.at[order].get(mode="promise_in_bounds", unique_indices=True), order


def _sort_by_tiles(*columns: jax.Array, num_keys: int) -> tuple[jax.Array, ...]:
    from voxax.coords.tile_sort import sort_columns  # imports Pallas, which few programs need

    return sort_columns(columns, num_keys)


def _sort_by_xla(*columns: jax.Array, num_keys: int) -> tuple[jax.Array, ...]:
    return tuple(jax.lax.sort(columns, num_keys=num_keys, is_stable=False))


_sort_distinct = natively_on_cpu("sort_distinct", _sort_by_xla, _sort_by_xla, _sort_by_tiles)
_sort = natively_on_cpu("sort_rows", _sort_rows_natively, _sort_on_accelerators)
