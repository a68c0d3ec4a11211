"""Find rows in a sorted coordinate list, by binary search and steps to adjacent rows.

No hash table and no atomics are used, so the result is the same on every platform and in every run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.ordering import WIDEST, rows_less
from voxax.coords.tile_lookup import find_columns

# The neighbors of a row along the last axis are adjacent rows. Walking to the next offset
# costs one comparison per lattice step; a new search costs about log2(rows) comparisons.
_LONGEST_WALK = 8
# One step of a search on a GPU finds up to this many bits of the position: it compares a query
# with 2**bits - 1 rows together. Each step is a kernel that waits for the previous one, so fewer
# steps are faster.
_WAY_BITS = 4
LONGEST_RUN = 32  # bits

Offsets = tuple[tuple[int, ...], ...]


def _bits(rows: Any) -> int:
    """Return the number of steps that a binary search in ``rows`` rows needs.

    ``rows`` may be a symbolic size of ``jax.export``; then the result is 30, enough for any size.
    """
    return 30 if _compat.is_symbolic(rows) else rows.bit_length()


@jax.jit
def lower_bound(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    """Return, for each query, the index of the first row that is not less than the query.

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
    """Return the index of a row that equals the query, or -1 for none, ``int32[...]``.

    Arguments are as in :func:`lower_bound`.
    """
    dtypes = {sorted_coords.dtype, queries.dtype}
    if queries.ndim != 2 or dtypes != {jnp.dtype("int32")}:
        return _halve_rows(sorted_coords, queries)
    find = _find_rows if 2 <= queries.shape[1] <= WIDEST else _search_rows
    return find(sorted_coords, queries)[0]


def _halve_rows(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    position = lower_bound(sorted_coords, queries)
    return jnp.where(_matches(sorted_coords, position, queries), position, -1)


def _search_rows(sorted_coords: jax.Array, queries: jax.Array) -> tuple[jax.Array]:
    def search(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
        columns = [queries[None, :, axis] for axis in range(queries.shape[1])]
        here, valid = jnp.zeros((1, len(columns)), jnp.int32), jnp.ones(queries.shape[:1], bool)
        before, there = search_runs(sorted_coords, columns, here, valid, 1)
        return jnp.where(there == 0, -1, before)[0]

    ways = {"default": _halve_rows, "cuda": search, "rocm": search}
    return (jax.lax.platform_dependent(sorted_coords, queries, **ways),)


def _merge_rows(sorted_coords: jax.Array, queries: jax.Array) -> tuple[jax.Array]:
    """Return the result of :func:`find_rows` in a tuple, computed by the native library."""
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
    """Return the row index of ``center + offset`` for every center and offset, or -1 for none.

    Args:
      sorted_coords: ``int32[N, 1 + D]`` in lexicographic order.
      centers: ``int32[M, 1 + D]``, batch index first, any order.
      valid: ``bool[M]``, False for centers that get -1 for every offset, such as padding.
      offsets: static ``int[K, D]`` in lexicographic order.
      ordered: whether the valid centers are in lexicographic order too. This only changes the speed
        on TPUs, which then compare tiles of rows (:mod:`voxax.coords.tile_lookup`).

    Returns:
      ``int32[M, K]``, the row or -1. Offsets that differ only along the last axis form a run, so a
      3x3x3 kernel has 9 runs. For each run there is one search; its other rows are adjacent.
    """
    taps = tuple(tuple(int(v) for v in offset) for offset in offsets)
    find = _find_natively if 2 <= centers.shape[1] <= WIDEST else _find_neighbors
    return find(sorted_coords, centers, valid, offsets=taps, ordered=ordered)[0]


# Jitted, so that an eager call compiles one program per shape and kernel. Runs with equal steps
# share a loop, so the program for 5x5x5 taps is as small as that for 3x3x3.
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
        # An array of symbolic size cannot be cut into tiles.
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
    """Return the result of :func:`find_columns`, by a binary search for each center and column."""
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
    """Return the result of :func:`find_columns`, by :func:`search_runs`, which has no loop."""
    runs = range(0, steps[-1] + 1, _LONGEST_WALK)  # each begins so many cells on
    begins = [starts.at[:, -1].add(run) for run in runs]
    length = min(steps[-1] + 1, _LONGEST_WALK)
    corners = [centers[None, :, axis] for axis in range(centers.shape[1])]
    results = search_runs(sorted_coords, corners, jnp.concatenate(begins), valid, length)
    shape = len(runs), len(starts), centers.shape[0]
    before, there = (result.reshape(shape) for result in results)
    found = []
    for step in steps:
        run, bit = step // _LONGEST_WALK, 1 << step % _LONGEST_WALK
        row = before[run] + jax.lax.population_count(there[run] & (bit - 1))
        found.append(jnp.where(there[run] & bit == 0, -1, row))
    return jnp.stack(found, axis=1)


def search_runs(
    sorted_coords: jax.Array,
    corners: Sequence[jax.Array],
    steps: jax.Array,
    valid: jax.Array,
    length: int,
) -> tuple[jax.Array, jax.Array]:
    """Find which cells of runs along the last axis are in a sorted list, without a loop, for GPUs.

    A GPU takes microseconds to start a kernel of any size, and a loop starts several kernels in
    each pass. Here each step of the search is one elementwise kernel that reads whole rows.

    Args:
      sorted_coords: ``int32[N, W]`` in lexicographic order, N above 0.
      corners: M cells from which runs are counted, as W arrays, one for each coordinate:
        ``int32[1, M]`` or, if each run has a corner of its own, ``int32[C, M]``.
      steps: ``int32[C, W]``; the first column is zero. There are C runs for each corner. Run c
        begins at the corner plus ``steps[c]``.
      valid: ``bool[M]``. Where it is False, the first result is undefined and the second is 0.
      length: number of cells in a run, at most :data:`LONGEST_RUN`.

    Returns:
      ``int32[C, M]`` twice. The first is the index of the first row that is not less than the begin
      of the run, as in :func:`lower_bound`. In the second, bit n is set if the n-th cell of the run
      has a row. The rows of these cells are consecutive and start at the first result.
    """
    sorted_coords, steps, valid, *corners = _compat.vary_alike(
        sorted_coords, steps, valid, *corners
    )
    rows = sorted_coords.shape[0]

    def compared(end: Any) -> tuple[jax.Array, jax.Array]:
        """Compare row ``before + end`` of the list with the first cell of each run.

        ``before`` counts the rows that are known to be less than the cell. Return whether this row
        is less too, and its distance from the cell along the last axis, or -1 if another axis
        differs.
        """
        place = before + end
        # Unsigned, because JAX would test signed indices for negative values.
        inside = jnp.minimum(place, rows - 1).astype(jnp.uint32)
        less, alike = jnp.zeros(place.shape, bool), place < rows
        for axis in reversed(range(steps.shape[1])):
            value = sorted_coords.at[inside, axis].get(mode="promise_in_bounds")
            # row < corner + step is tested as row - step < corner, so that the kernels read the
            # corners in place. The difference overflows only in padding, whose batch index differs.
            value = value - steps[:, axis, None]
            same = value == corners[axis]
            less = (value < corners[axis]) | (same & less)
            if axis == steps.shape[1] - 1:
                cell = value - corners[axis]
            else:
                alike &= same
        return less & (place < rows), jnp.where(alike, cell, -1)

    before = jnp.zeros((len(steps), valid.shape[0]), jnp.int32)  # rows known to be less
    before, _ = _compat.vary_alike(before, valid)
    there, left = jnp.zeros_like(before), _bits(rows)
    # Find the position digit by digit, the highest bits first: before = sum of size * less.
    while left:
        bits = -(-left // -(-left // _WAY_BITS))  # turns of like size, the longer ones first
        left -= bits
        size, number = 1 << left, (1 << bits) - 1
        if not _compat.is_symbolic(rows):
            number = min(number, rows // size)
        ends = size * np.arange(1, number + 1, dtype=np.int32) - 1
        if left:
            less = jnp.sum(jax.vmap(compared)(ends)[0], 0, jnp.int32)
        else:  # this turn sees all rows that a run may have; as a sum it would be two kernels
            seen = [compared(end) for end in range(number + length)]
            less = sum(part.astype(jnp.int32) for part, _ in seen[:number])
            for _, cell in seen:
                bit = jnp.left_shift(1, jnp.clip(cell, 0, length - 1))
                there |= jnp.where((cell >= 0) & (cell < length), bit, 0)
        # Rows ascend, so the number of lesser rows is the digit. The barrier keeps XLA from
        # computing the result again for each reader, and from splitting the kernel.
        before = jax.lax.optimization_barrier(before + size * less)
    there = jnp.where(valid[None], there, 0)
    return jax.lax.optimization_barrier((before, there))


def _matches(sorted_coords: jax.Array, position: jax.Array, queries: jax.Array) -> jax.Array:
    inside = position < sorted_coords.shape[0]
    rows = sorted_coords.at[position].get(mode="clip")
    return inside & jnp.all(rows == queries, axis=-1)


def _runs(offsets: Offsets) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """Group offsets into runs along the last axis, split where a gap is longer than 8.

    Returns:
      A dict. A key is a run's steps along the last axis, which begin with 0. The value lists the
      first offset of every run that has these steps.
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
    """Return the result of :func:`find_neighbors` in a tuple, computed by the native library."""
    del ordered  # the native kernel tests the order itself
    shape = jax.ShapeDtypeStruct((centers.shape[0], len(offsets)), jnp.int32)
    taps = jnp.asarray(offsets, jnp.int32)
    return (library_call("voxax_find_neighbors", shape, sorted_coords, centers, valid, taps),)


_find_natively = natively_on_cpu("find_neighbors", _merge_neighbors, _find_neighbors)
