"""Finding neighbors tile by tile, for chips that compare fast and gather slowly.

Binary search reads a row after each comparison. A TPU takes 2 to 8 cycles for such a read and
compares 1,024 numbers in one. Where the centers are in canonical order too, the neighbors of 128
of them along one column of taps lie in two or three blocks of 128 consecutive rows: those are found
by comparing with the first row of every block, and then all centers with all of their rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.coords.lattice import PAD
from voxax.coords.ordering import rows_less

TILE = 128
"""Rows of one tile, of centers and of searched rows: the lanes of a vector register."""
WINDOW = 2 * TILE
"""Rows that a tile is compared with at a time; on real scans usually all that it needs."""
LONGEST_RUN = 16
"""Cells of taps that one sum tells apart: the sum of 16 places in a window has 12 bits."""
_MOST_VISITS = 2**31 - 1  # numbers of 32 bits count them
VISITS = 128
"""Visits of a window by a tile that go together: the lanes again."""


def find_columns(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    starts: jax.Array,
    steps: tuple[int, ...],
) -> jax.Array:
    """Row of ``center + start``, and of some lattice steps further on along the last axis.

    Exact for centers in any order; with ``M / 128 * N / 128`` comparisons of tiles and blocks if
    they come in none.

    Args:
      sorted_coords: ``int32[N, W]`` in canonical order, distinct but for padding, N above 0.
      centers: ``int32[M, W]``, M above 0.
      valid: ``bool[M]``; other centers find nothing.
      starts: ``int32[S, W]``, where the columns begin.
      steps: static, ascending from 0: the taps of each column.

    Returns:
      ``int32[S, len(steps), M]``, the row or -1.
    """
    number = centers.shape[0]
    # Tiles fill whole registers. Else XLA broadcasts coordinates over lanes, at three times the
    # cost.
    padding = -number % (TILE * VISITS)
    # A window may begin in the last block, or behind it.
    blocks = _in_tiles(sorted_coords, -len(sorted_coords) % TILE + WINDOW)
    tiles, known = _in_tiles(centers, padding), jnp.pad(valid, (0, padding)).reshape(-1, TILE)
    low, high = _least(tiles, known), ~_least(~tiles, known)
    heads, some = blocks[:, :, 0], jnp.any(known, axis=1)

    def column(start: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        first = jnp.maximum(_not_after(heads, low + start[None]) - 1, 0)
        # A block that begins behind the last center's last tap holds none of its neighbors.
        end = start.at[-1].add(steps[-1])
        number = jnp.maximum(_not_after(heads, high + end[None]) - first, 0)
        query = tiles + start[None, :, None]
        return first, jnp.where(some, number, 0), _compared(blocks, first, query, steps)

    def query(place: jax.Array) -> jax.Array:
        which, tile = place // len(tiles), place % len(tiles)
        return tiles[tile] + starts[which][:, :, None]

    first, more, table = jax.lax.map(column, starts)
    found = _search(blocks, first, more, table, query, steps, len(blocks))
    found = jnp.where(known[None, :, None] & (found < sorted_coords.shape[0]), found, -1)
    return found.swapaxes(1, 2).reshape(len(starts), len(steps), -1)[..., :number]


def _in_tiles(rows: jax.Array, padding: int) -> jax.Array:
    """``[N, W]`` and ``padding`` rows to ``[tiles, W, TILE]``."""
    padded = jnp.pad(rows, ((0, padding), (0, 0)), constant_values=PAD)
    return padded.reshape(-1, TILE, rows.shape[1]).swapaxes(1, 2)


def _least(tiles: jax.Array, known: jax.Array) -> jax.Array:
    """``int32[tiles, W]``: the lexicographically least known row of each."""
    most = jnp.iinfo(tiles.dtype).max
    words = []
    for word in range(tiles.shape[1]):
        least = jnp.min(jnp.where(known, tiles[:, word], most), axis=1)
        known = known & (tiles[:, word] == least[:, None])
        words.append(least)
    return jnp.stack(words, axis=1)


def find_numbers(columns: jax.Array, number: int) -> jax.Array:
    """Place of each number in each column.

    Exact for columns in any order; quick where they ascend, but for gaps, as the rows do that a tap
    of a map between canonical orders reads.

    Args:
      columns: ``int32[K, M]``, K and M above 0; -1 is a gap, other numbers stand there once.
      number: above 0.

    Returns:
      ``int32[K, number]``: the place of 0, 1, ... ``number - 1`` in each column, or -1.
    """
    padding = -columns.shape[1] % TILE
    filled = jnp.pad(columns, ((0, 0), (0, padding + WINDOW)), constant_values=-1)
    blocks = filled.reshape(len(columns), -1, 1, TILE)
    tiles = -(-number // (TILE * VISITS)) * VISITS
    numbers = jnp.arange(tiles * TILE, dtype=jnp.int32).reshape(-1, 1, TILE)
    begin, size = TILE * jnp.arange(tiles, dtype=jnp.int32)[:, None], blocks.shape[1]

    def column(block: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        most = jnp.max(block, axis=(1, 2))
        least = jnp.min(jnp.where(block < 0, jnp.iinfo(jnp.int32).max, block), axis=(1, 2))
        # Blocks that may hold numbers of the tile, and all blocks between them.
        meets = (least[None] < begin + TILE) & (most[None] >= begin)
        which = jnp.arange(size, dtype=jnp.int32)[None]
        # If there are none, the padding: what is behind is the next column's.
        first = jnp.min(jnp.where(meets, which, size - WINDOW // TILE), axis=1)
        last = jnp.max(jnp.where(meets, which, -1), axis=1)
        return first, jnp.maximum(last - first + 1, 0), _compared(block, first, numbers, (0,))

    def query(place: jax.Array) -> jax.Array:
        return numbers[place % tiles]

    first, more, table = jax.lax.map(column, blocks)
    begins = size * jnp.arange(len(columns), dtype=jnp.int32)
    table = jnp.where(table < 0, -1, table + TILE * begins[:, None, None, None])
    whole = blocks.reshape(-1, 1, TILE)
    found = _search(whole, first + begins[:, None], more, table, query, (0,), size)
    found = jnp.where(found < 0, -1, found - TILE * begins[:, None, None, None])
    return found.reshape(len(columns), -1)[:, :number]


def _search(
    blocks: jax.Array,
    first: jax.Array,
    number: jax.Array,
    table: jax.Array,
    query: Callable[[jax.Array], jax.Array],
    steps: tuple[int, ...],
    most: int,
) -> jax.Array:
    """The row of each query, and of some steps further on, among those of some blocks, or -1.

    Args:
      blocks: ``int32[blocks, W, TILE]``, the rows, with a window of padding behind them.
      first, number: ``int32[columns, tiles]``, which blocks each tile is compared with.
      table: ``int32[columns, tiles, len(steps), TILE]``, what the first windows of blocks gave.
      query: places ``int32[V]`` among all columns' tiles to their queries, ``int32[V, W, TILE]``.
      steps: along the last of the W axes.
      most: blocks that a tile is compared with at most.

    Returns:
      As ``table``.
    """
    shape = table.shape
    at_once = max(_MOST_VISITS // (shape[1] * -(-most * TILE // WINDOW)), 1)
    if shape[0] > at_once:  # their visits are counted in 32 bits
        cut = at_once * shape[1]
        parts = [
            _search(blocks, *some, moved, steps, most)
            for some, moved in (
                ((first[:at_once], number[:at_once], table[:at_once]), query),
                (
                    (first[at_once:], number[at_once:], table[at_once:]),
                    lambda place: query(place + cut),
                ),
            )
        ]
        return jnp.concatenate(parts)
    table, first = table.reshape(-1, *shape[2:]), first.reshape(-1)
    # Few tiles need more than one window: those that go on behind a plane of a strided map's lines.
    more = jnp.maximum(-(-number.reshape(-1) * TILE // WINDOW) - 1, 0)
    ends = jnp.cumsum(more, dtype=jnp.int32)
    total = ends[-1]

    def visit(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done, table = state
        place = done + jnp.arange(VISITS, dtype=jnp.int32)
        tile = jnp.searchsorted(ends, place, side="right", method="compare_all")
        # Places behind the last visit compare the last tile with a window of its column, or of the
        # padding behind: no harm is done.
        tile = jnp.minimum(tile.astype(jnp.int32), len(table) - 1)
        block = first[tile] + (1 + place - (ends - more)[tile]) * (WINDOW // TILE)
        found = _compared(blocks, block, query(tile), steps)
        return done + VISITS, table.at[tile].max(found, indices_are_sorted=True)

    done, table, _ = _compat.vary_alike(jnp.zeros((), jnp.int32), table, ends)
    _, table = jax.lax.while_loop(lambda state: state[0] < total, visit, (done, table))
    return table.reshape(shape)


def _not_after(heads: jax.Array, queries: jax.Array) -> jax.Array:
    """Number of heads that are not greater than each query; all are compared."""
    after = rows_less(queries[:, None], heads[None])
    return heads.shape[0] - jnp.sum(after, axis=1, dtype=jnp.int32)


def _compared(
    blocks: jax.Array, first: jax.Array, query: jax.Array, steps: tuple[int, ...]
) -> jax.Array:
    """Results of :func:`_search` in the window that begins with each tile's first block.

    Windows go last, into the lanes: nothing must then be broadcast over lanes, which takes TPUs
    longer than the comparisons do.
    """
    parts = [blocks.at[first + i].get(mode="clip") for i in range(WINDOW // TILE)]
    window, query = jnp.concatenate(parts, axis=2).transpose(1, 2, 0), query.transpose(1, 2, 0)
    apart = window[-1, :, None] - query[-1, None]
    alike = [window[w, :, None] == query[w, None] for w in range(len(window) - 1)]
    found = [row for some in _runs(steps) for row in _rows_of_taps(apart, alike, some)]
    found = jnp.stack(found).transpose(2, 0, 1)
    return jnp.where(found < 0, -1, found + TILE * first[:, None, None])


def _runs(steps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The steps in groups of at most ``LONGEST_RUN`` cells."""
    runs: list[tuple[int, ...]] = []
    for step in steps:
        if not runs or step - runs[-1][0] >= LONGEST_RUN:
            runs.append(())
        runs[-1] = (*runs[-1], step)
    return runs


def _rows_of_taps(
    apart: jax.Array, alike: list[jax.Array], steps: tuple[int, ...]
) -> list[jax.Array]:
    """Place in the window of each query's row at each of some steps, or -1.

    Rows are distinct and ascend, so those of a query's taps lie behind each other. One sum then
    tells all: in its low bits which cells from the first step on have a row, above them the sum of
    their places.
    """
    cells, apart = steps[-1] - steps[0] + 1, apart - steps[0]
    here = functools.reduce(operator.and_, alike, apart.astype(jnp.uint32) < cells)
    place = (jnp.arange(WINDOW, dtype=jnp.int32) << cells)[:, None, None]
    total = jnp.sum(jnp.where(here, place + (1 << (apart & 31)), 0), axis=0, dtype=jnp.int32)
    there = total & ((1 << cells) - 1)
    number = jax.lax.population_count(there)
    # They are first, first + 1, ...: the mean of the first and the last is that of all. As floats,
    # since TPUs divide no integers; it is a whole number below 2**8.
    first = ((total >> cells) - (number * (number - 1) >> 1)).astype(jnp.float32)
    first = (first / jnp.maximum(number, 1).astype(jnp.float32) + 0.5).astype(jnp.int32)
    found = []
    for step in steps:
        bit = 1 << (step - steps[0])
        row = first + jax.lax.population_count(there & (bit - 1))
        found.append(jnp.where(there & bit == 0, -1, row))
    return found
