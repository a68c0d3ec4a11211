"""Finding rows in a sorted coordinate list, by binary search and short walks.

No hash table and no atomics: the same result on every platform, every run.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.ordering import WIDEST, rows_less
from voxax.coords.tile_lookup import find_columns

# Along the last axis the neighbors of a hit are adjacent rows; walking to the next
# offset costs one comparison per lattice step, a new search about log2(rows) of them.
_LONGEST_WALK = 8
# A step of a search on a GPU compares with so many rows less one as bits tell apart: each step is a
# kernel or two, and waits for the one before.
_WAY_BITS = 2

Offsets = tuple[tuple[int, ...], ...]


def _bits(rows: Any) -> int:
    """Steps of a binary search among ``rows``, which may be a symbolic size of ``jax.export``."""
    return 30 if _compat.is_symbolic(rows) else rows.bit_length()


@jax.jit
def lower_bound(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    """First row that is not less than each query.

    Args:
      sorted_coords: ``int32[N, W]`` in lexicographic order.
      queries: ``int32[..., W]``.

    Returns:
      ``int32[...]`` in ``[0, N]``.
    """
    rows = sorted_coords.shape[0]
    low = jnp.zeros(queries.shape[:-1], jnp.int32)
    high = jnp.full(queries.shape[:-1], rows, jnp.int32)
    sorted_coords, queries, low, high = _compat.vary_alike(sorted_coords, queries, low, high)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) >> 1
        row = sorted_coords.at[middle].get(mode="clip")
        less = rows_less(row, queries) & (low < high)
        return jnp.where(less, middle + 1, low), jnp.where(less, high, middle)

    low, _ = jax.lax.fori_loop(0, _bits(rows), halve, (low, high))
    return low


@jax.jit
def find_rows(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    """Row of each query, or -1. Shapes as in :func:`lower_bound`."""
    dtypes = {sorted_coords.dtype, queries.dtype}
    if queries.ndim != 2 or dtypes != {jnp.dtype("int32")}:
        return _halve_rows(sorted_coords, queries)
    find = _find_rows if 2 <= queries.shape[1] <= WIDEST else _search_rows
    return find(sorted_coords, queries)[0]


def _halve_rows(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    position = lower_bound(sorted_coords, queries)
    return jnp.where(_matches(sorted_coords, position, queries), position, -1)


def _search_rows(sorted_coords: jax.Array, queries: jax.Array) -> tuple[jax.Array]:
    def one_column(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
        center = jnp.zeros((1, queries.shape[1]), jnp.int32)
        valid = jnp.ones(queries.shape[:1], bool)
        return _search_columns(sorted_coords, queries, valid, center, (0,))[0, 0]

    ways = {"default": _halve_rows, "cuda": one_column, "rocm": one_column}
    return (jax.lax.platform_dependent(sorted_coords, queries, **ways),)


def _merge_rows(sorted_coords: jax.Array, queries: jax.Array) -> tuple[jax.Array]:
    """Results of :func:`_search_rows` by the native kernel, with one tap, the center itself."""
    center = ((0,) * (queries.shape[1] - 1),)
    valid = jnp.ones(queries.shape[:1], bool)
    return (_merge_neighbors(sorted_coords, queries, valid, center)[0][:, 0],)


_find_rows = natively_on_cpu("find_rows", _merge_rows, _search_rows)


def find_neighbors(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    offsets: np.ndarray,
    ordered: bool = False,
) -> jax.Array:
    """Row of ``center + offset`` for every center and offset.

    Args:
      sorted_coords: ``int32[N, 1 + D]`` in canonical order.
      centers: ``int32[M, 1 + D]``, batch index first, any order.
      valid: ``bool[M]``; invalid centers find nothing.
      offsets: static ``int[K, D]`` in lexicographic order.
      ordered: valid centers are in canonical order too. The result does not depend on it;
        TPUs then compare tiles of rows (:mod:`voxax.coords.tile_lookup`).

    Returns:
      ``int32[M, K]``, the row or -1. One search per run of offsets that share all
      but the last axis (9 for a 3x3x3 kernel), then a walk over adjacent rows.
    """
    taps = tuple(tuple(int(v) for v in offset) for offset in offsets)
    find = _find_natively if 2 <= centers.shape[1] <= WIDEST else _find_neighbors
    return find(sorted_coords, centers, valid, offsets=taps, ordered=ordered)[0]


# Jitted, so that an eager call compiles one program per shape and kernel, and the runs of
# one shape in a loop, so that this program is as small for 5x5x5 taps as for 3x3x3.
@functools.partial(jax.jit, static_argnames=("offsets", "ordered"))
def _find_neighbors(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    offsets: Offsets,
    ordered: bool,
) -> tuple[jax.Array]:
    tables, taps = [], []
    for steps, starts in _runs(offsets).items():
        first = jnp.asarray([[0, *offset] for offset in starts], jnp.int32)
        arguments = sorted_coords, centers, valid, first
        ways = {"default": _walk_columns, "cuda": _search_columns, "rocm": _search_columns}
        sizes = sorted_coords.shape[0], centers.shape[0]
        # Tiles of a symbolic size cannot be counted.
        if ordered and not _compat.is_symbolic(*sizes) and all(sizes):
            ways["tpu"] = find_columns
        ways = {name: functools.partial(way, steps=steps) for name, way in ways.items()}
        found = jax.lax.platform_dependent(*arguments, **ways)
        tables.append(found.reshape(-1, centers.shape[0]))
        taps += [(*offset[:-1], offset[-1] + step) for offset in starts for step in steps]
    place = {tap: row for row, tap in enumerate(taps)}
    order = np.asarray([place[offset] for offset in offsets])
    return (jnp.concatenate(tables)[order].T,)


def _walk_columns(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    starts: jax.Array,
    steps: tuple[int, ...],
) -> jax.Array:
    """Results of :func:`voxax.coords.tile_lookup.find_columns` by binary search."""
    length = steps[-1] + 1

    def step(at: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, jax.Array]:
        position, query = at
        hit = _matches(sorted_coords, position, query)
        row = jnp.where(hit & valid, position, -1)
        return (position + hit.astype(jnp.int32), query.at[:, -1].add(1)), row

    def walk(start: jax.Array) -> jax.Array:
        query = centers + start[None, :]
        begin = (lower_bound(sorted_coords, query), query)
        unroll = min(length, _LONGEST_WALK)
        _, rows = jax.lax.scan(step, begin, length=length, unroll=unroll)
        return rows if len(steps) == length else rows[np.asarray(steps)]

    return jax.lax.map(walk, starts)


def _search_columns(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    starts: jax.Array,
    steps: tuple[int, ...],
) -> jax.Array:
    """Results of :func:`_walk_columns` without a loop, all columns at once.

    A GPU takes microseconds to start a kernel, whatever its size, and a loop starts several in each
    pass. Here all steps are elementwise, so that few kernels hold them; each reads whole rows.
    """
    rows, width = sorted_coords.shape
    sorted_coords, centers, starts = _compat.vary_alike(sorted_coords, centers, starts)
    query = [centers[None, :, axis] + starts[:, axis, None] for axis in range(width)]

    def read(position: jax.Array) -> list[jax.Array]:
        inside = jnp.minimum(position, rows - 1)
        return [
            sorted_coords.at[inside, axis].get(mode="promise_in_bounds") for axis in range(width)
        ]

    def is_less(position: jax.Array) -> jax.Array:
        less = jnp.zeros(position.shape, bool)
        for row, wanted in reversed(list(zip(read(position), query, strict=True))):
            less = (row < wanted) | ((row == wanted) & less)
        return less & (position < rows)

    before = jnp.zeros_like(query[0])  # rows that are known to be less
    turns = -(-_bits(rows) // _WAY_BITS)
    for turn in reversed(range(turns)):
        size = 1 << (_WAY_BITS * turn)
        end = (1 << _WAY_BITS) * size
        skips = range(size, end if _compat.is_symbolic(rows) else min(end, rows + 1), size)
        # Where one is less, all before it are too.
        less = [is_less(before + (skip - 1)) for skip in skips]
        before += size * sum(part.astype(jnp.int32) for part in less)
    found = []
    for step in range(steps[-1] + 1):
        query[-1] = query[-1] + min(step, 1)
        hit = before < rows
        for row, wanted in zip(read(before), query, strict=True):
            hit &= row == wanted
        if step in steps:
            found.append(jnp.where(hit & valid[None, :], before, -1))
        before += hit.astype(jnp.int32)
    return jnp.stack(found, axis=1)


def _matches(sorted_coords: jax.Array, position: jax.Array, queries: jax.Array) -> jax.Array:
    inside = position < sorted_coords.shape[0]
    rows = sorted_coords.at[position].get(mode="clip")
    return inside & jnp.all(rows == queries, axis=-1)


def _runs(offsets: Offsets) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Group offsets into walks along the last axis.

    Returns:
      For each set of lattice steps, counted from 0, the offsets that such a walk starts from.
    """
    runs: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for prefix, group in itertools.groupby(sorted(set(offsets)), key=lambda offset: offset[:-1]):
        walks: list[list[int]] = []
        for *_, last in group:
            if not walks or last - walks[-1][-1] > _LONGEST_WALK:
                walks.append([])
            walks[-1].append(last)
        for walk in walks:
            steps = tuple(last - walk[0] for last in walk)
            runs.setdefault(steps, []).append((*prefix, walk[0]))
    return runs


def _merge_neighbors(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    offsets: Offsets,
    ordered: bool = False,
) -> tuple[jax.Array]:
    """Neighbors by the native kernel, which walks all columns of taps through both lists."""
    del ordered  # the native kernel tests the order itself
    shape = jax.ShapeDtypeStruct((centers.shape[0], len(offsets)), jnp.int32)
    taps = jnp.asarray(offsets, jnp.int32)
    return (library_call("voxax_find_neighbors", shape, sorted_coords, centers, valid, taps),)


_find_natively = natively_on_cpu("find_neighbors", _merge_neighbors, _find_neighbors)
