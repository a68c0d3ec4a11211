"""Find the distinct coarse cells of rows that are already sorted, without a sort on GPUs."""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native.on_cpu import natively_on_cpu
from voxax.coords.coarse import coarsen
from voxax.coords.lattice import PAD
from voxax.coords.lookup import LONGEST_RUN, search_runs
from voxax.coords.ordering import is_valid
from voxax.coords.unique import UniqueRows, unique_rows

_MOST_SEARCHES = 17  # for each row; a sort takes less time than more searches


# Jitted so that an eager call is one program instead of a dozen small ones.
@functools.partial(jax.jit, static_argnames=("stride", "capacity"))
def unique_cells(coords: jax.Array, stride: tuple[int, ...], capacity: int) -> UniqueRows:
    """Return the distinct cells that contain the voxels, on a lattice coarser by ``stride``.

    The result equals ``unique_rows(coarsen(coords, stride), capacity)``. On GPUs this function may
    take less time.

    Args:
      coords: ``int32[N, 1 + D]``, sorted, distinct, padding last.
      stride: D positive integers; static.
      capacity: number of rows of the result; static.
    """
    return UniqueRows(*_find_cells(coords, stride=stride, capacity=capacity))


def _sorted_cells(coords: jax.Array, stride: tuple[int, ...], capacity: int) -> UniqueRows:
    return unique_rows(coarsen(coords, stride), capacity)


def _cells_on_gpu(coords: jax.Array, stride: tuple[int, ...], capacity: int) -> UniqueRows:
    searches = 2 * math.prod(stride[:-1]) - 1
    known = not _compat.is_symbolic(coords.shape[0]) and coords.shape[0]
    few = known and searches <= _MOST_SEARCHES and stride[-1] <= LONGEST_RUN
    return (_searched_cells if few else _sorted_cells)(coords, stride, capacity)


def _searched_cells(coords: jax.Array, stride: tuple[int, ...], capacity: int) -> UniqueRows:
    """Return the result of :func:`unique_cells`, by searches instead of a sort.

    The output row of a cell is the number of cells before it. The searches of :func:`_searches`
    count these cells.
    """
    rows = coords.shape[0]
    valid, cells = is_valid(coords), coarsen(coords, stride)
    starts, given, lines = _searches(stride)
    corner = cells * jnp.asarray([[1, *stride]], jnp.int32)
    lowest = jnp.iinfo(jnp.int32).min
    query = [
        jnp.where(jnp.asarray(given[:, axis, None]), corner[None, :, axis], lowest)
        for axis in range(coords.shape[1])
    ]
    before, there = search_runs(coords, query, jnp.asarray(starts), valid, stride[-1])
    head = jnp.full((rows,), -1, jnp.int32)
    for line in reversed(range(lines)):
        head = jnp.where(there[line] != 0, before[line], head)
    first = head == jnp.arange(rows, dtype=jnp.int32)
    upto = jnp.cumsum(first, dtype=jnp.int32)
    last = jnp.maximum(before - 1, 0).astype(jnp.uint32)
    number = jnp.where(before > 0, upto.at[last].get(mode="promise_in_bounds"), 0)
    rank = jnp.sum(number[:lines], 0, jnp.int32) - jnp.sum(number[lines:], 0, jnp.int32)
    kept = valid & (rank < capacity)
    out = jnp.full((capacity, coords.shape[1]), PAD, jnp.int32)
    out = out.at[jnp.where(kept & first, rank, capacity)].set(cells, mode="drop")
    count = jnp.minimum(upto[-1], capacity)
    return UniqueRows(out, count, upto[-1] - count, jnp.where(kept, rank, -1))


@functools.lru_cache(maxsize=64)
def _searches(stride: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the searches by which :func:`_searched_cells` counts the cells before each cell.

    Returns:
      Three values. ``int32[searches, 1 + D]``: the steps from the cell's corner to the row that is
      searched. ``bool[searches, 1 + D]``: False where this row has the lowest integer instead of a
      coordinate. An integer n: results of the first n searches are added, the others subtracted.

    A line is the set of sites that differ only in the last coordinate. Its begin has the lowest
    integer as last coordinate. Let F(row) be the number of cells whose first voxel comes before
    this row. A cell covers several lines. In one of them, the number of cells before the cell is
    F(corner of the cell in the line) - F(begin of the line). These numbers are added up over the
    cell's lines along the axis before the last. The cells in earlier lines are added too: F(begin
    of the cell's first line) - F(begin of all lines along that axis). The begin of the first line
    cancels out. The same is done for the axes before, up to the first.
    """
    axes = len(stride)
    searches = [[0, *steps, 0] for steps in itertools.product(*map(range, stride[:-1]))]
    given = [[True] * (axes + 1)] * len(searches)
    lines = len(searches)
    for depth in range(1, axes):
        for steps in itertools.product(*map(range, stride[:depth])):
            if steps[-1]:
                searches.append([0, *steps] + [0] * (axes - depth))
                given.append([True] * (depth + 1) + [False] * (axes - depth))
    return np.asarray(searches, np.int32), np.asarray(given), lines


_find_cells = natively_on_cpu("unique_cells", _sorted_cells, _sorted_cells, gpu=_cells_on_gpu)
