"""Sort columns of numbers on a TPU, tile by tile, by a bitonic network in Pallas.

XLA's own sort unrolls its network. It takes half a minute to compile for five columns of 262,144
numbers on v5e, and does not finish for 41,936 numbers on 7x. Here the network is a few loops, which
compile in 1 to 5 s in both cases. By the compiler's schedules, 41,936 rows take 110 us on v5e, and
95 us with XLA's sort.

A block of rows is in vector memory as tiles of 8 x 128. The lowest bits of a row's number choose
its tile, the next three bits its sublane, and the highest seven bits its lane. So most comparisons,
which are of near rows, compare whole tiles and move nothing within a register. Rows of different
blocks are compared elementwise by XLA.

K. E. Batcher, "Sorting networks and their applications", AFIPS 1968.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat

NAME = "tile_sort"
"""The name of the kernels in compiled programs."""
_SUBLANES, _LANES = 8, 128
_SUBLANE_BITS = _SUBLANES.bit_length() - 1
_TILE_BITS = 10
_BLOCK_NUMBERS = 1 << 19
"""Largest number of int32 in a block. Two input and two output buffers of it take 8 MB of VMEM."""
_AT_ONCE = 8
"""Number of tiles that a loop step reads before it writes, so that latencies overlap."""

Rows = list[jax.Array]
"""The columns of a set of rows, all of one shape."""


def sort_columns(
    columns: Sequence[jax.Array], num_keys: int, interpret: bool = False
) -> tuple[jax.Array, ...]:
    """Return the columns of a table with its rows sorted lexicographically, on a TPU.

    Args:
      columns: ``int32[N]`` each, N above 0; row i is the i-th entry of all columns.
      num_keys: number of leading columns that are compared. No two rows may be equal in all of
        these columns, and no row may have the largest int32 in all of them.
      interpret: True runs in Pallas' interpreter, slowly but on any platform.
    """
    (number,) = columns[0].shape
    bits = max((number - 1).bit_length(), _TILE_BITS)
    fits = max((_BLOCK_NUMBERS // len(columns)).bit_length() - 1, _TILE_BITS)
    network = _Network(len(columns), num_keys, min(bits, fits), interpret)
    padding, last = (1 << bits) - number, np.iinfo(np.int32).max
    table = jnp.stack([jnp.pad(column, (0, padding), constant_values=last) for column in columns])
    table = network.sorted_blocks(table.reshape(len(columns), -1, _SUBLANES, _LANES))
    for stage in range(network.bits, bits):
        for bit in range(stage - network.bits, -1, -1):
            table = network.compare_blocks(table, stage - network.bits, bit)
        table = network.merged_blocks(table, stage)
    tiles = table.reshape(len(columns), -1, network.tiles, _SUBLANES, _LANES)
    rows = tiles.transpose(0, 1, 4, 3, 2).reshape(len(columns), -1)[:, :number]
    return tuple(rows)


@dataclasses.dataclass(frozen=True)
class _Network:
    """A bitonic sorting network on a table ``int32[columns, tiles, 8, 128]``.

    It compares rows by their first ``num_keys`` columns. Stage ``s`` merges runs of ``2**s`` sorted
    rows into runs of ``2**(s + 1)`` sorted rows, every second one descending. The stage compares
    rows whose numbers differ in bit ``s``, then in bit ``s - 1``, down to bit 0. One Pallas kernel
    does the comparisons within a block of ``2**bits`` rows, XLA those between blocks.
    """

    columns: int
    num_keys: int
    bits: int
    """Number of bits of a row's number within its block."""
    interpret: bool

    @property
    def tiles(self) -> int:
        """Number of tiles of a block."""
        return 1 << (self.bits - _TILE_BITS)

    def sorted_blocks(self, table: jax.Array) -> jax.Array:
        """Return the table with each block sorted, every second block descending."""
        return self._call(table, 0, self.bits)

    def merged_blocks(self, table: jax.Array, stage: int) -> jax.Array:
        """Return the table after those comparisons of a stage that are within a block."""
        return self._call(table, stage, stage + 1)

    def compare_blocks(self, table: jax.Array, stage: int, bit: int) -> jax.Array:
        """Return the table after one step of a stage, which compares rows of different blocks.

        Each block is compared row by row with the block whose number differs in ``bit``, and rows
        that are out of order are exchanged. In ``stage`` and ``bit``, 0 stands for the first stage
        after those within a block, and for the lowest bit of a block's number.
        """
        pairs = table.reshape(self.columns, -1, 2, self.tiles << bit, _SUBLANES, _LANES)
        down = np.arange(pairs.shape[1]) >> (stage - bit) & 1 != 0  # bit stage + 1 of a row's block
        first, second = ([pairs[c, :, side] for c in range(self.columns)] for side in range(2))
        halves = _exchanged(first, second, down[:, None, None, None], self.num_keys)
        return jnp.stack([jnp.stack(half) for half in halves], axis=2).reshape(table.shape)

    def _call(self, table: jax.Array, first: int, end: int) -> jax.Array:
        def run(source: Any, target: Any) -> None:
            _Block(self, source, target).run(first, end)

        block = pl.BlockSpec((self.columns, self.tiles, _SUBLANES, _LANES), lambda i: (0, i, 0, 0))
        call = pl.pallas_call(
            run,
            grid=(table.shape[1] // self.tiles,),
            in_specs=[block],
            out_specs=block,
            out_shape=_compat.shape_like(table.shape, table.dtype, table),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
            interpret=self.interpret,
            name=NAME,
        )
        # With x64 enabled, a Python number in an index map is 64 bits long, which the chip lacks.
        with jax.enable_x64(False):
            return call(table)


class _Block:
    """The Pallas kernel that runs stages of the sorting network on one block of rows.

    It copies the block from ``source`` to ``target`` and exchanges rows there.
    """

    def __init__(self, network: _Network, source: Any, target: Any) -> None:
        self.network, self.source, self.target = network, source, target
        sublane = jax.lax.broadcasted_iota(jnp.int32, (_SUBLANES, _LANES), 0)
        lane = jax.lax.broadcasted_iota(jnp.int32, (_SUBLANES, _LANES), 1)
        self.place = lane * _SUBLANES + sublane  # the bits of a row's number above its tile's
        self.begin = pl.program_id(0) << network.bits

    def run(self, first: int, end: int) -> None:
        tile_bits = self.network.bits - _TILE_BITS
        lane_bits = tile_bits + _SUBLANE_BITS
        self.target[...] = self.source[...]

        def run_stage(s: Any) -> None:
            for below, last, compare in (
                (self.network.bits, lane_bits, functools.partial(self._registers, 1)),
                (lane_bits, tile_bits, functools.partial(self._registers, 0)),
                (tile_bits, 0, self._tiles),
            ):
                top = jnp.minimum(s, below - 1)
                _loop(0, top - last + 1, lambda t, top=top, compare=compare: compare(s, top - t))

        _loop(first, end, run_stage)

    def _get(self, tile: Any) -> Rows:
        return [self.target[c, tile] for c in range(self.network.columns)]

    def _put(self, tile: Any, rows: Rows) -> None:
        for c, column in enumerate(rows):
            self.target[c, tile] = column

    def _tiles(self, stage: Any, bit: Any) -> None:
        """Compare each row with the row whose number differs in ``bit``, which is in another tile.

        Rows that are out of order in this ``stage`` are exchanged.
        """
        shift = self.network.bits - _TILE_BITS

        def compare(numbers: list[Any]) -> None:
            lows = [(i >> bit << (bit + 1)) | (i & ((1 << bit) - 1)) for i in numbers]
            pairs = [(low, low | (1 << bit)) for low in lows]
            rows = [[self._get(tile) for tile in pair] for pair in pairs]
            for (low, high), (a, b) in zip(pairs, rows, strict=True):
                row = (self.place << shift) + (self.begin + low)
                down = (row >> (stage + 1)) & 1 != 0
                a, b = _exchanged(a, b, down, self.network.num_keys)
                self._put(low, a)
                self._put(high, b)

        _in_groups(self.network.tiles // 2, _AT_ONCE // 2, compare)

    def _registers(self, axis: int, stage: Any, bit: Any) -> None:
        """Compare each row with the row whose number differs in ``bit``, which is in the same tile.

        Rows that are out of order are exchanged.

        Args:
          axis: 0 for a bit of the sublane, 1 for a bit of the lane.
          stage: the stage of the network.
          bit: the bit of the row's number.
        """
        shift = self.network.bits - _TILE_BITS
        row = (self.place << shift) + self.begin
        down = (row >> (stage + 1)) & 1
        upper = (row >> bit) & 1
        step = jnp.left_shift(1, bit - shift - axis * _SUBLANE_BITS)
        size = (_SUBLANES, _LANES)[axis]

        def compare(tiles: list[Any]) -> None:
            for i, rows in zip(tiles, [self._get(i) for i in tiles], strict=True):
                # A row whose bit is 0 has its partner ``step`` places after it, else before it.
                after = [pltpu.roll(x, size - step, axis) for x in rows]
                before = [pltpu.roll(x, step, axis) for x in rows]
                sides = zip(before, after, strict=True)
                partners = [jnp.where(upper != 0, x, y) for x, y in sides]
                keep = _less(rows, partners, self.network.num_keys) != ((upper ^ down) != 0)
                pairs = zip(rows, partners, strict=True)
                self._put(i, [jnp.where(keep, mine, other) for mine, other in pairs])

        _in_groups(self.network.tiles, _AT_ONCE, compare)


def _in_groups(number: int, size: int, body: Callable[[list[Any]], None]) -> None:
    """Call ``body`` on the numbers ``0, ..., number - 1`` in lists of up to ``size`` numbers.

    Both ``number`` and ``size`` are powers of two.
    """
    size = min(number, size)
    if size:
        _loop(0, number // size, lambda i: body([i * size + u for u in range(size)]))


def _loop(begin: Any, end: Any, body: Callable[[Any], None]) -> None:
    jax.lax.fori_loop(begin, end, lambda i, _: body(i), None)


def _exchanged(a: Rows, b: Rows, down: Any, num_keys: int) -> tuple[Rows, Rows]:
    """Return ``a`` and ``b`` with row i of both exchanged where they are out of order.

    Rows are compared by their first ``num_keys`` columns. The first result has the lesser row of
    each pair, or the greater one where ``down`` is True, and the second result has the other.
    """
    keep = _less(a, b, num_keys) != down
    pairs = list(zip(a, b, strict=True))
    return [jnp.where(keep, x, y) for x, y in pairs], [jnp.where(keep, y, x) for x, y in pairs]


def _less(a: Rows, b: Rows, num_keys: int) -> jax.Array:
    less = a[num_keys - 1] < b[num_keys - 1]
    for key in range(num_keys - 2, -1, -1):
        less = (a[key] < b[key]) | ((a[key] == b[key]) & less)
    return less
