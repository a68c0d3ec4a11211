"""Windows: for each tile of output rows, the runs of input rows that hold its neighbors.

Rows of both sides are in canonical order, last axis fastest. So along one *column* of a kernel
(taps that differ only along the last axis, and little) the neighbors of consecutive output rows
lie in one run of consecutive input rows, about as long as the tile: for tiles of 128 rows on LiDAR
sweeps and indoor scans, 127 rows in the mean and 162 to 273 in 99 of 100 tiles. Strided maps skip
rows between their lines, so theirs are longer.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.kernel_map import View, by_name
from voxax.geometry.kernel_spec import KernelSpec

WINDOW_TILE = 128
"""Output rows of one tile."""
WINDOW_ALIGNMENT = 16
"""Windows start at multiples of it: what TPUs copy of 16-bit rows."""
LONGEST_COLUMN = 16
"""Cells from the first to the last tap of a column, at most."""

Columns = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=1024)
def columns_of(spec: KernelSpec | None, num_offsets: int) -> Columns:
    """Taps by column, each tap once; without a spec every tap is a column of its own.

    Args:
      spec: the relation, or None if unknown.
      num_offsets: K.
    """
    if spec is None:
        return tuple((tap,) for tap in range(num_offsets))
    lines: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for tap, (*line, last) in enumerate(spec.dilated_offsets.tolist()):
        lines.setdefault(tuple(line), []).append((last, tap))
    columns: list[tuple[int, ...]] = []
    for taps in lines.values():
        begin = None
        for last, tap in sorted(taps):
            if begin is None or last - begin > LONGEST_COLUMN:
                columns.append(())
                begin = last
            columns[-1] = (*columns[-1], tap)
    return tuple(columns)


@functools.partial(jax.jit, static_argnames="columns")
def find_windows(neighbors: jax.Array, columns: Columns) -> jax.Array:
    """Where the neighbors of each tile lie, column by column.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1.
      columns: taps of each column.

    Returns:
      ``int32[2, tiles, columns]``: first input row, rounded down to ``WINDOW_ALIGNMENT``, and the
      number of rows from there to the last neighbor; 0 and 0 where the tile has none.
    """
    rows, taps = neighbors.shape
    tiles = -(-rows // WINDOW_TILE)
    padding = ((0, tiles * WINDOW_TILE - rows), (0, 0))
    table = jnp.pad(neighbors, padding, constant_values=-1).reshape(tiles, WINDOW_TILE, taps)
    first = jnp.min(jnp.where(table < 0, jnp.iinfo(jnp.int32).max, table), axis=1)
    last = jnp.max(table, axis=1)
    starts, lengths = [], []
    for column in columns:
        index = jnp.asarray(column, jnp.int32)
        low, high = jnp.min(first[:, index], axis=1), jnp.max(last[:, index], axis=1)
        start = jnp.where(high < 0, 0, low - low % WINDOW_ALIGNMENT)
        starts.append(start)
        lengths.append(high + 1 - start)
    return jnp.stack([jnp.stack(starts, axis=1), jnp.stack(lengths, axis=1)])


def _build(neighbors: jax.Array, spec: KernelSpec | None) -> jax.Array:
    return find_windows(neighbors, columns_of(spec, neighbors.shape[1]))


def _on_host(neighbors: np.ndarray, spec: KernelSpec | None) -> np.ndarray:
    rows, taps = neighbors.shape
    tiles = -(-rows // WINDOW_TILE)
    table = np.full((tiles * WINDOW_TILE, taps), -1, np.int32)
    table[:rows] = neighbors
    table = table.reshape(tiles, WINDOW_TILE, taps)
    first = np.where(table < 0, np.iinfo(np.int32).max, table).min(1, initial=2**31 - 1)
    last = table.max(1, initial=-1)
    columns = list(map(list, columns_of(spec, taps)))
    low = np.stack([first[:, column].min(1) for column in columns], 1)
    high = np.stack([last[:, column].max(1) for column in columns], 1)
    start = np.where(high < 0, 0, low - low % WINDOW_ALIGNMENT)
    return np.stack([start, high + 1 - start]).astype(np.int32)


VIEWS = by_name(View("windows", _build, _on_host))
"""The windows of the neighbor table, see :func:`find_windows`, and of the transposed one."""


def tiles_of_visits(
    lengths: jax.Array, window: int, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which tile each visit is of, tile after tile.

    Args:
      lengths: ``int32[tiles, columns]``, of the windows.
      window: rows of each column that one visit covers.
      most: number of places for visits, see :func:`most_visits`.

    Returns:
      ``(of_place int32[most], first int32[tiles], ends int32[tiles])``: the tile of each place (the
      last one behind the visits), and each tile's visits are the places ``first`` to ``ends - 1``.
    """
    number = jnp.max(-(-lengths // window), axis=1)
    ends = jnp.cumsum(number, dtype=jnp.int32)
    places = jnp.arange(most, dtype=jnp.int32)
    # How many tiles end at or before a place. All are compared: TPUs would search by gathers, place
    # after place.
    of_place = jnp.searchsorted(ends, places, side="right", method="compare_all").astype(jnp.int32)
    return jnp.minimum(of_place, lengths.shape[0] - 1), ends - number, ends


def most_visits(
    spec: KernelSpec | None,
    columns: Columns,
    in_capacity: int,
    tiles: int,
    window: int,
    alignment: int = WINDOW_ALIGNMENT,
) -> int:
    """How often tiles are visited at most, where one visit covers ``window`` rows of each column.

    A tile of visits ``max_c ceil(length_c / window)`` needs ``sum_c (length_c - 1) // window``
    more than one at most. Windows of one column overlap only where two tiles meet, by less than
    the column's reach: each input row's taps lie in a segment no longer than that, which belongs
    to two tiles at most. It holds where the rows of both sides are in canonical order, as those
    of every map that voxax builds. Each window may start up to ``alignment - 1`` rows early.
    """
    more = 0
    for column in columns:
        reach = 0
        if spec is not None:
            last = spec.dilated_offsets[list(column), -1]
            reach = int(last.max() - last.min()) + 1
        more += (in_capacity + tiles * (alignment + reach)) // window
    return tiles + more
