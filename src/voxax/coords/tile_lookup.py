"""Find neighbors by comparing tiles of rows, for TPUs, which compare fast and gather slowly.

Binary search reads a row after each comparison. A TPU takes 2 to 8 cycles for such a read, and one
cycle to compare 1,024 numbers. If the centers are in lexicographic order too, the neighbors of a
tile of 128 centers along one column of taps are in two or three blocks of 128 consecutive rows. The
search compares the tile with the first row of every block to find these blocks. Then it compares
all centers of the tile with all rows of these blocks.
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
"""Number of rows of a tile of centers, and of a block of searched rows: a register's lanes."""
WINDOW = 2 * TILE
"""Number of rows that a tile is compared with at a time. On real scans this is usually enough."""
LONGEST_RUN = 16
"""Largest number of cells of a column in one sum, see :func:`_rows_of_taps`. The cells take 16
bits, and the sum of up to 16 places in a window takes 12 bits."""
WIDEST_TILE = 4e9
"""Limit of the number of keys between the least and the greatest query of a tile. It is below
``2**32`` by more than the rounding error of float32 plus the cells of a column."""
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
"""A mask for each of three cells. Bit n is set if the cell has a row when ``4 * number + sum = n``:
here ``number`` counts the cells that have a row, and ``sum`` adds their indices."""
_MOST_VISITS = 2**31 - 1  # numbers of 32 bits count them
VISITS = 128
"""Number of (tile, window) pairs that are compared together: the lanes of a register."""


def find_columns(
    sorted_coords: jax.Array,
    centers: jax.Array,
    valid: jax.Array,
    starts: jax.Array,
    steps: tuple[int, ...],
) -> jax.Array:
    """Return the row index of ``center + start + step`` for every start, step and center, or -1.

    The kernel offsets are columns along the last axis: one column begins at each start, and all
    have the same steps. The result is right for centers in any order. Unordered centers take up to
    ``M / 128 * N / 128`` comparisons of a tile with a block.

    Args:
      sorted_coords: ``int32[N, W]`` in lexicographic order, distinct except for padding, N above 0.
      centers: ``int32[M, W]``, M above 0.
      valid: ``bool[M]``, False for centers that get -1 for every step, such as padding.
      starts: ``int32[S, W]``, offset of the first cell of each column.
      steps: the taps of each column as steps along the last axis, ascending from 0; static.

    Returns:
      ``int32[S, len(steps), M]``, the row or -1.
    """
    number = centers.shape[0]
    # Pad to whole registers. Otherwise XLA broadcasts coordinates over lanes, which costs three
    # times as much.
    padding = -number % (TILE * VISITS)
    # A window may begin in the last block or after it.
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
        # Blocks that begin after the last tap of the tile's last center contain no neighbors.
        number = jnp.maximum(_not_after(heads, most) - first, 0)
        number = jnp.where(some, number, 0)
        window = _windows(keyed, first)
        rows = jnp.moveaxis(window[:-1], 0, -1)
        outside = rows_less(rows, least[None]) | rows_less(most[None], rows)
        # Rows outside [least, most] get the key of least minus 1, which no query has.
        before = _keys(least[..., None], sizes).reshape(1, -1) - 1
        window = jnp.where(outside, before, window[-1])[None]
        query = queries + _keys(start[None, :, None], sizes)
        # The barrier keeps XLA from computing the keys again for each query.
        window, query = jax.lax.optimization_barrier((window, query))
        table = _places(window, query, first, steps)
        # Keys of a wide tile may be ambiguous. So compare its first window again by all words, with
        # its other windows: start one window (WINDOW // TILE blocks) earlier.
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
    """Append ``padding`` padding rows to ``rows [N, W]``; return them as ``[tiles, W, TILE]``."""
    padded = jnp.pad(rows, ((0, padding), (0, 0)), constant_values=PAD)
    return padded.reshape(-1, TILE, rows.shape[1]).swapaxes(1, 2)


def _ranges(tiles: jax.Array, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``int32[W]`` twice: the least and the greatest value of each column of all rows.

    ``tiles`` is ``[tiles, W, TILE]``. Rows where the mask ``known``, ``bool[tiles, 1, TILE]``, is
    False are ignored.
    """
    most = jnp.iinfo(tiles.dtype).max
    least = jnp.min(jnp.where(known, tiles, most), axis=(0, 2))
    return least, jnp.max(jnp.where(known, tiles, ~most), axis=(0, 2))


def _key_sizes(
    ranges: tuple[tuple[jax.Array, jax.Array], ...],
    bounds: tuple[jax.Array, jax.Array],
    starts: jax.Array,
    last_step: int,
) -> tuple[jax.Array, jax.Array]:
    """Return the factors from which keys of rows are computed, and which tiles have unique keys.

    The key of a row is its index, in lexicographic order, in the box around all rows and queries,
    modulo ``2**32``: ``key = sum_w row[w] * sizes[w]``. If fewer than ``2**32`` cells of the box
    lie between the least and the greatest query of a tile, no two rows between them share a key.

    Args:
      ranges: ranges of the rows and of the centers, see :func:`_ranges`.
      bounds: ``int32[tiles, W]`` twice, the least and the greatest center of each tile.
      starts: ``int32[S, W]``, offset of the first cell of each column of taps.
      last_step: the last tap of the columns, as a step along the last axis.

    Returns:
      ``int32[W]``, the factors ``sizes``, one for each column of the rows; and ``bool[tiles]``,
      whether the keys of a tile are unique.
    """
    (least, most), (first, last) = ranges
    along = jnp.zeros_like(least).at[-1].set(last_step)
    reach = jnp.min(starts, axis=0), jnp.max(starts, axis=0) + along
    least, most = jnp.minimum(least, first + reach[0]), jnp.maximum(most, last + reach[1])
    sizes = _products(most - least + 1)
    # In float32, because int32 would overflow.
    near = _floats(first) + _floats(reach[0]) > -_FARTHEST
    near &= _floats(last) + _floats(reach[1]) < _FARTHEST
    apart = jnp.abs(_floats(bounds[1]) - _floats(bounds[0])) + _floats(along[None])
    lengths = _products(_floats(most) - _floats(least) + 1)
    span = jnp.sum(apart * lengths[None], axis=1)
    return sizes, jnp.all(near) & (span < WIDEST_TILE)


def _products(lengths: jax.Array) -> jax.Array:
    """Return an array like ``lengths [W]``: at each index, the product of all later lengths."""
    found = [jnp.ones_like(lengths[0])]
    for word in range(len(lengths) - 1, 0, -1):
        found.insert(0, found[0] * lengths[word])
    return jnp.stack(found)


def _floats(numbers: jax.Array) -> jax.Array:
    return numbers.astype(jnp.float32)


def _keys(tiles: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return keys ``int32[tiles, 1, n]`` of rows ``[tiles, W, n]``; see :func:`_key_sizes`."""
    return jnp.sum(tiles * sizes[None, :, None], axis=1, keepdims=True, dtype=jnp.int32)


def _least(tiles: jax.Array, known: jax.Array) -> jax.Array:
    """Return ``int32[tiles, W]``, the lexicographically least row of each tile ``[W, TILE]``.

    Rows where the mask ``known bool[tiles, TILE]`` is False are ignored.
    """
    most = jnp.iinfo(tiles.dtype).max
    words = []
    for word in range(tiles.shape[1]):
        least = jnp.min(jnp.where(known, tiles[:, word], most), axis=1)
        known = known & (tiles[:, word] == least[:, None])
        words.append(least)
    return jnp.stack(words, axis=1)


def find_numbers(columns: jax.Array, number: int) -> jax.Array:
    """Return the index at which each number 0, 1, ... ``number - 1`` stands in each column.

    The result is exact for columns in any order. The search is fast if each column ascends, apart
    from gaps, as in the neighbor table of a map between rows in lexicographic order.

    Args:
      columns: ``int32[K, M]``, K and M above 0. -1 is a gap; every other number occurs at most once
        in a column.
      number: how many numbers to find, above 0.

    Returns:
      ``int32[K, number]``, the index in the column, or -1.
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
        # Blocks that may contain numbers of the tile, and all blocks between them.
        meets = (least[None] < begin + TILE) & (most[None] >= begin)
        which = jnp.arange(size, dtype=jnp.int32)[None]
        # Without such a block, choose the padding at the end of this column: the next column's
        # blocks come after it.
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
    """Complete ``table``, the row at each query plus step, or -1, by searching more blocks of rows.

    A tile has TILE queries, and a block has TILE rows. A window is a few consecutive blocks, which
    are compared with a tile at a time. The first window of each tile is not searched here.

    Args:
      blocks: ``int32[blocks, W, TILE]``, the rows, followed by a window of padding.
      first, number: ``int32[columns, tiles]``, the block at which the first window of each tile
        begins, and the number of blocks in all windows of the tile.
      table: ``int32[columns, tiles, len(steps), TILE]``, rows found in the first windows, or -1.
      query: function from indices ``int32[V]`` of tiles, counted through all columns, to the
        queries ``int32[V, W, TILE]`` of these tiles.
      steps: steps along the last of the W axes.
      most: the largest number of blocks that a tile is compared with.

    Returns:
      ``table``, to which the rows found in the other windows are added.
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
    # Few tiles need more than one window. The loop below lists their further windows as visits, and
    # compares VISITS of them at a time.
    more = jnp.maximum(-(-number.reshape(-1) * TILE // WINDOW) - 1, 0)
    ends = jnp.cumsum(more, dtype=jnp.int32)
    total = ends[-1]

    def visit(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done, table = state
        place = done + jnp.arange(VISITS, dtype=jnp.int32)
        tile = jnp.searchsorted(ends, place, side="right", method="compare_all")
        # Places after the last visit compare the last tile with another window. Rows found there
        # are correct too.
        tile = jnp.minimum(tile.astype(jnp.int32), len(table) - 1)
        block = first[tile] + (1 + place - (ends - more)[tile]) * (WINDOW // TILE)
        found = _compared(blocks, block, query(tile), steps)
        return done + VISITS, table.at[tile].max(found, indices_are_sorted=True)

    done, table, _ = _compat.vary_alike(jnp.zeros((), jnp.int32), table, ends)
    _, table = jax.lax.while_loop(lambda state: state[0] < total, visit, (done, table))
    return table.reshape(shape)


def _not_after(heads: jax.Array, queries: jax.Array) -> jax.Array:
    """Return, for each row of ``queries``, how many rows of ``heads`` are less than or equal to it.

    The order is lexicographic. For ``heads [H, W]`` and ``queries [Q, W]`` the result is
    ``int32[Q]``.
    """
    after = rows_less(queries[:, None], heads[None])
    return heads.shape[0] - jnp.sum(after, axis=1, dtype=jnp.int32)


def _compared(
    blocks: jax.Array, first: jax.Array, query: jax.Array, steps: tuple[int, ...]
) -> jax.Array:
    """Return the row at each query plus step, ``int32[tiles, len(steps), TILE]``, or -1.

    ``blocks`` are ``[blocks, W, TILE]``, the rows to search. ``query`` has TILE queries for each
    tile, ``[tiles, W, TILE]``. Only the window of ``WINDOW`` rows from block ``first[tile]`` on is
    searched. In the comparisons, tiles are the last axis (TPU lanes). So nothing is broadcast over
    lanes, which takes longer than to compare.
    """
    return _places(_windows(blocks, first), query, first, steps)


def _windows(blocks: jax.Array, first: jax.Array) -> jax.Array:
    """Return ``int32[W, WINDOW, tiles]``: for each tile, the rows from block ``first[tile]`` on.

    ``blocks`` are ``[blocks, W, TILE]``, TILE rows of W numbers each.
    """
    parts = [blocks.at[first + i].get(mode="clip") for i in range(WINDOW // TILE)]
    return jnp.concatenate(parts, axis=2).transpose(1, 2, 0)


def _places(
    window: jax.Array, query: jax.Array, first: jax.Array, steps: tuple[int, ...]
) -> jax.Array:
    """Return the row at each query plus step, ``int32[tiles, len(steps), TILE]``, or -1.

    ``window``, ``[W, WINDOW, tiles]``, has the rows to search for each tile, from its block
    ``first`` on. ``query``, ``[tiles, W, TILE]``, has the tile's queries. ``steps`` are along the
    last of the W axes.
    """
    query = query.transpose(1, 2, 0)
    apart = window[-1, :, None] - query[-1, None]
    alike = [window[w, :, None] == query[w, None] for w in range(len(window) - 1)]
    found = [row for some in _runs(steps) for row in _rows_of_taps(apart, alike, some)]
    found = jnp.stack(found).transpose(2, 0, 1)
    return jnp.where(found < 0, -1, found + TILE * first[:, None, None])


def _runs(steps: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Divide ``steps``, which ascend, into runs that span at most ``LONGEST_RUN`` cells each."""
    runs: list[tuple[int, ...]] = []
    for step in steps:
        if not runs or step - runs[-1][0] >= LONGEST_RUN:
            runs.append(())
        runs[-1] = (*runs[-1], step)
    return runs


def _rows_of_taps(
    apart: jax.Array, alike: list[jax.Array], steps: tuple[int, ...]
) -> list[jax.Array]:
    """Return, for each step, the index in the window of the row at each query plus the step, or -1.

    Each result is ``int32[TILE, tiles]``. ``apart``, ``[WINDOW, TILE, tiles]``, is row minus query
    along the last axis, for all pairs of a window's rows and a tile's queries. Each of ``alike`` is
    a mask of the pairs that are equal along another axis.

    Rows are distinct and ascend, so the rows of a query's taps are consecutive: their indices are
    ``p, p + 1, ...``. So one sum over the window is enough to find them. The low bits of the sum
    tell which cells of the run have a row; the bits above are the sum of the indices of these rows.
    """
    cells, apart = steps[-1] - steps[0] + 1, apart - steps[0]
    here = functools.reduce(operator.and_, alike, apart.astype(jnp.uint32) < cells)
    # The low bits have one bit for each cell. Up to three cells need only 4 bits in all: the number
    # of cells with a row and the sum of their indices determine these cells.
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
    # The places are first, first + 1, ..., so total = number * first + number * (number - 1) / 2.
    # Solve for first, in floats, because TPUs cannot divide integers; it is below 2**8.
    first = (total - (number * (number - 1) >> 1)).astype(jnp.float32)
    first = (first / jnp.maximum(number, 1).astype(jnp.float32) + 0.5).astype(jnp.int32)
    found = []
    for step in steps:
        bit = 1 << (step - steps[0])
        row = first + jax.lax.population_count(there & (bit - 1))
        found.append(jnp.where(there & bit == 0, -1, row))
    return found
