"""Finding neighbors tile by tile, for chips that compare fast and gather slowly.

Binary search reads a row after each comparison. A TPU takes 2 to 8 cycles for such a read and
compares 1,024 numbers in one. Where the centers are in canonical order too, the neighbors of 128
of them along one column of taps lie in two or three blocks of 128 consecutive rows: those are found
by comparing with the first row of every block, and then all centers with all of their rows.
"""

from __future__ import annotations

import functools
import itertools
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
WIDEST_TILE = 4e9
"""Keys between the least and the greatest query of a tile: fewer than ``2**32`` by more than the
rounding of floating point, and the cells of a column."""
_FARTHEST = 2.147e9  # a coordinate of 32 bits
_COUNT = 4  # above the sum of three cells: 0 + 1 + 2
_HAVE = tuple(
    sum(
        1 << sum(_COUNT + cell for cell in some)
        for number in range(1, 4)
        for some in itertools.combinations(range(3), number)
        if cell in some
    )
    for cell in range(3)
)
"""For each of three cells, in bit n whether it has a row where ``4 * number + sum`` of those that
have is n."""
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
    ranges = _ranges(blocks, blocks[:, :1] != PAD), _ranges(tiles, known[:, None])
    sizes, narrow = _key_sizes(ranges, (low, high), starts, steps[-1])
    keyed, queries = jnp.append(blocks, _keys(blocks, sizes), 1), _keys(tiles, sizes)

    def column(start: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        least, most = low + start[None], high + start.at[-1].add(steps[-1])[None]
        first = jnp.maximum(_not_after(heads, least) - 1, 0)
        # A block that begins behind the last center's last tap holds none of its neighbors.
        number = jnp.maximum(_not_after(heads, most) - first, 0)
        number = jnp.where(some, number, 0)
        window = _windows(keyed, first)
        rows = jnp.moveaxis(window[:-1], 0, -1)
        outside = rows_less(rows, least[None]) | rows_less(most[None], rows)
        # No query has this key.
        before = _keys(least[..., None], sizes).reshape(1, -1) - 1
        window = jnp.where(outside, before, window[-1])[None]
        query = queries + _keys(start[None, :, None], sizes)
        # Else XLA may compute keys anew for each query.
        window, query = jax.lax.optimization_barrier((window, query))
        table = _places(window, query, first, steps)
        # Tiles that keys are not enough for are compared with all their windows one by one.
        again = jnp.where(narrow, 0, WINDOW // TILE)
        number = jnp.where(number > 0, number + again, 0)
        return first - again, number, jnp.where(narrow[:, None, None], table, -1)

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


def _ranges(tiles: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``int32[W]`` twice: the least and the greatest number of each word in known rows."""
    most = jnp.iinfo(tiles.dtype).max
    least = jnp.min(jnp.where(known, tiles, most), axis=(0, 2))
    return least, jnp.max(jnp.where(known, tiles, ~most), axis=(0, 2))


def _key_sizes(
    ranges: tuple[tuple[jax.Array, jax.Array], ...],
    bounds: tuple[jax.Array, jax.Array],
    starts: jax.Array,
    last_step: int,
) -> tuple[jax.Array, jax.Array]:
    """What one step along each word adds to a row's key, and for which tiles keys are enough.

    The key is the row's number in the box around all rows and queries, line by line, modulo
    ``2**32``. Between the least and the greatest query of a tile no two rows share it if fewer
    numbers than that lie between these two.

    Args:
      ranges: of the rows and of the centers, see :func:`_ranges`.
      bounds: ``int32[tiles, W]``, the least and the greatest center of each tile.
      starts, last_step: where columns begin, and their last step.

    Returns:
      ``int32[W]`` and ``bool[tiles]``.
    """
    (least, most), (first, last) = ranges
    along = jnp.zeros_like(least).at[-1].set(last_step)
    reach = jnp.min(starts, axis=0), jnp.max(starts, axis=0) + along
    least, most = jnp.minimum(least, first + reach[0]), jnp.maximum(most, last + reach[1])
    sizes = _products(most - least + 1)
    # Floating point, where whole numbers wrap around.
    near = _floats(first) + _floats(reach[0]) > -_FARTHEST
    near &= _floats(last) + _floats(reach[1]) < _FARTHEST
    apart = jnp.abs(_floats(bounds[1]) - _floats(bounds[0])) + _floats(along[None])
    lengths = _products(_floats(most) - _floats(least) + 1)
    span = jnp.sum(apart * lengths[None], axis=1)
    return sizes, jnp.all(near) & (span < WIDEST_TILE)


def _products(lengths: jax.Array) -> jax.Array:
    """Of each word, the product of the lengths of those behind it."""
    found = [jnp.ones_like(lengths[0])]
    for word in range(len(lengths) - 1, 0, -1):
        found.insert(0, found[0] * lengths[word])
    return jnp.stack(found)


def _floats(numbers: jax.Array) -> jax.Array:
    return numbers.astype(jnp.float32)


def _keys(tiles: jax.Array, sizes: jax.Array) -> jax.Array:
    """``[tiles, W, n]`` to ``[tiles, 1, n]``; they wrap around."""
    return jnp.sum(tiles * sizes[None, :, None], axis=1, keepdims=True, dtype=jnp.int32)


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
    return _places(_windows(blocks, first), query, first, steps)


def _windows(blocks: jax.Array, first: jax.Array) -> jax.Array:
    """``int32[W, WINDOW, tiles]``: the window that begins with each tile's first block."""
    parts = [blocks.at[first + i].get(mode="clip") for i in range(WINDOW // TILE)]
    return jnp.concatenate(parts, axis=2).transpose(1, 2, 0)


def _places(
    window: jax.Array, query: jax.Array, first: jax.Array, steps: tuple[int, ...]
) -> jax.Array:
    """Results of :func:`_search` in windows."""
    query = query.transpose(1, 2, 0)
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
    # Which of up to three cells have a row, their number and their sum tell; else a bit for each.
    few = cells <= 3
    bits, cell = (4, apart) if few else (cells, 1 << (apart & 31))
    place = ((jnp.arange(WINDOW, dtype=jnp.int32) << bits) + (_COUNT if few else 0))[:, None, None]
    total = jnp.sum(jnp.where(here, place + cell, 0), axis=0, dtype=jnp.int32)
    there, total = total & ((1 << bits) - 1), total >> bits
    if few:
        there = functools.reduce(
            operator.or_, ((mask >> there & 1) << cell for cell, mask in enumerate(_HAVE[:cells]))
        )
    number = jax.lax.population_count(there)
    # They are first, first + 1, ...: the mean of the first and the last is that of all. As floats,
    # since TPUs divide no integers; it is a whole number below 2**8.
    first = (total - (number * (number - 1) >> 1)).astype(jnp.float32)
    first = (first / jnp.maximum(number, 1).astype(jnp.float32) + 0.5).astype(jnp.int32)
    found = []
    for step in steps:
        bit = 1 << (step - steps[0])
        row = first + jax.lax.population_count(there & (bit - 1))
        found.append(jnp.where(there & bit == 0, -1, row))
    return found
