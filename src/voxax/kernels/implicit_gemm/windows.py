"""Windows: for each tile of output rows, the runs of input rows that hold its neighbors.

Rows of both sides are in canonical order, last axis fastest. So along one *column* of a kernel
(taps that differ only along the last axis, and little) the neighbors of consecutive output rows
lie in one run of consecutive input rows, about as long as the tile: for tiles of 128 rows on LiDAR
sweeps and indoor scans, 127 rows in the mean and 162 to 273 in 99 of 100 tiles. Strided maps skip
rows between their lines, so theirs are longer.

Here are the views, and what the kernels for dense and for depthwise weights have in common: what
they read of a map, the memory that they take, and how operands are cut into blocks of channels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.kernel_maps import View, by_name
from voxax.geometry.kernel_spec import KernelSpec
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import Parameters, Problem, Product, Views
from voxax.kernels.rows import table_name

WINDOW_TILE = 128
"""Output rows of one tile."""
WINDOW_ALIGNMENT = 64
"""Windows start at multiples of it."""
LONGEST_COLUMN = 16
"""Cells from the first to the last tap of a column, at most."""

# Channels stand above each other in registers, of bfloat16 so many.
_CHANNELS = 16
CHANNELS = 128
"""More channels are cut into blocks of multiples of it, the sides of a matrix unit; or of half."""

# Of tiles of 128 rows on LiDAR sweeps and indoor scans, 88 to 100 % have no window longer than 256
# rows from such a start; the longest window had 562.
SHORTEST = 256
"""Rows of the shorter windows."""
# Rows of a window, and how many times the usual tiles a step takes. A step of twice as many tiles
# takes 4 to 10 % less time for each (v5e and v6e, counted), but all of them are visited again where
# one has a longer run: of thin LiDAR 2 in 100 visits more, of dense scans and rooms 14 to 20.
_SIZES = ((SHORTEST, 1), (512, 1), (SHORTEST, 2))
SPILLED = 2**20
"""Bytes of vector memory for what does not fit in registers."""
# Every column and tap is code of its own, so many taps would take long to compile. 7 x 7 x 7.
_MOST_TAPS = 343
# float32 is the sum of three bfloat16 numbers, of 8 bits each.
_PARTS = 3
# Of these precisions one pass over bfloat16 operands is enough.
_ONE_PASS = ("default", "BF16_BF16_F32")

Columns = tuple[tuple[int, ...], ...]


class Steps(Protocol):
    """Of both kinds of ``Blocks``: what the grid depends on, see there."""

    @property
    def window(self) -> int: ...
    @property
    def stripes(self) -> int: ...
    @property
    def tiles(self) -> int: ...


_Blocks = TypeVar("_Blocks", bound=Steps)


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
    """Find the runs of rows that hold the neighbors of each tile, column by column.

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
    """Return the tile of each visit, tile after tile.

    Args:
      lengths: ``int32[tiles, windows]``, of the windows of each tile.
      window: rows of each column that one visit covers.
      most: number of places for visits, see :func:`most_visits`.

    Returns:
      ``(of_place int32[most], first int32[tiles], ends int32[tiles])``: the tile of each place (the
      last one behind the visits), and each tile's visits are the places ``first`` to ``ends - 1``.
    """
    number = jnp.max(-(-lengths // window), axis=1)
    ends = jnp.cumsum(number, dtype=jnp.int32)
    places = jnp.arange(most, dtype=jnp.int32)
    # The number of tiles that end at or before a place. All are compared: TPUs would search by
    # gathers, place after place.
    of_place = jnp.searchsorted(ends, places, side="right", method="compare_all").astype(jnp.int32)
    return jnp.minimum(of_place, lengths.shape[0] - 1), ends - number, ends


def most_visits(
    spec: KernelSpec | None,
    columns: Columns,
    in_capacity: int,
    tiles: int,
    window: int,
    tiles_of_step: int = 1,
) -> int:
    """The most visits of all tiles, where one covers ``window`` rows of each column of some tiles.

    A tile of visits ``max_c ceil(length_c / window)`` needs ``sum_c (length_c - 1) // window``
    more than one at most. Windows of one column overlap only where two tiles meet, by less than
    the column's reach: each input row's taps lie in a segment no longer than that, which belongs
    to two tiles at most. It holds where the rows of both sides are in canonical order, as those
    of every map that voxax builds. Each window may start up to ``WINDOW_ALIGNMENT - 1`` rows early.
    """
    more = 0
    for column in columns:
        reach = 0
        if spec is not None:
            last = spec.dilated_offsets[list(column), -1]
            reach = int(last.max() - last.min()) + 1
        more += (in_capacity + tiles * (WINDOW_ALIGNMENT + reach)) // window
    return -(-tiles // tiles_of_step) + more


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The table of the side that is written, and its windows."""
    del parameters
    if product == "dgrad" and not symmetric:
        return ("transposed_neighbors", "transposed_windows")
    return ("neighbors", "windows")


@dataclasses.dataclass(frozen=True)
class MapArrays:
    """The arrays of a map that a product reads.

    Attributes:
      table: ``int32[K, M]``, of the side that is written, tap by tap.
      windows: of the table, see :func:`find_windows`.
      columns: taps of each column.
    """

    table: jax.Array
    windows: jax.Array
    columns: Columns

    @classmethod
    def of(cls, problem: Problem, views: Views) -> MapArrays:
        """The arrays among the views that :func:`reads` names."""
        name, layer = table_name(problem), problem.layer
        windows = views["windows" if name == "neighbors" else "transposed_windows"]
        return cls(views[name].T, windows, columns_of(layer.spec, layer.num_offsets))


def unfit(problem: Problem, takes: str, dtype_reason: str | None) -> str | None:
    """The reason why no window kernel runs this problem, whatever its blocks, or None.

    Args:
      problem: a product.
      takes: the kind of weights that the kernels take, with their name and verb before it.
      dtype_reason: why they do not take the problem's dtype, or None.
    """
    kind, taps = problem.layer.kind, problem.layer.num_offsets
    if problem.platform != "tpu":
        return f"the window kernels run on TPUs, not on {problem.platform}"
    if not takes.endswith(f" {kind}"):
        return f"{takes} weights, not {kind} ones"
    if dtype_reason is not None:
        return dtype_reason
    if taps > _MOST_TAPS:
        return f"the window kernels take {_MOST_TAPS} taps at most, got {taps}"
    return None


def fitting(
    hardware: HardwareInfo,
    blocks_of: Callable[[int, int], Iterable[_Blocks]],
    vmem_bytes: Callable[[_Blocks], int],
    smem_bytes: Callable[[_Blocks], int],
) -> list[_Blocks]:
    """The blocks that are worth measuring, if they fit both memories: of each of a few lengths of
    windows and multiples of the usual tiles of a step, ``blocks_of(window, times)``, the first that
    fit vector memory.
    """
    found: dict[_Blocks, None] = {}
    for window, times in _SIZES:
        # XLA's own arrays take some.
        most = (hardware.vmem_bytes or 0) * 15 // 16
        fits = (b for b in blocks_of(window, times) if vmem_bytes(b) <= most)
        best = next(fits, None)
        if best is not None and smem_bytes(best) <= free_smem(hardware):
            found[best] = None
    return list(found)


def alike(found: list[_Blocks], chosen: _Blocks) -> _Blocks | None:
    """The blocks of those that have the chosen window and tiles of a step; else the first."""
    same = (b for b in found if (b.window, b.tiles) == (chosen.window, chosen.tiles))
    return next(same, found[0] if found else None)


def block_sizes(channels: int) -> list[int]:
    """Blocks of equal size that channels are cut into, padded, the largest first."""
    if channels <= CHANNELS:
        return [-(-channels // _CHANNELS) * _CHANNELS]
    whole = -(-channels // CHANNELS)
    sizes = {-(-whole // pieces) * CHANNELS for pieces in range(1, whole + 1)}
    return [*sorted(sizes, reverse=True), CHANNELS // 2]


def scalar_bytes(problem: Problem, window: int, stripes: int, tiles_of_step: int) -> int:
    """Scalar memory of a call: its visits, the windows of each tile, and where stripes begin."""
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    tiles = -(-problem.out_rows // WINDOW_TILE)
    visits = most_visits(
        problem.layer.spec, columns, problem.gathered_rows, tiles, window, tiles_of_step
    )
    scalars = (tiles + tiles_of_step) * (1 + 2 * len(columns))
    return 4 * (visits + scalars + stripes + 1)


def free_smem(hardware: HardwareInfo) -> int:
    """Scalar memory that arguments may fill: all but 2 KiB of 1 MiB was seen to compile."""
    return max(0, (hardware.smem_bytes or 0) - 4096)


def parts_of(problem: Problem) -> int:
    """bfloat16 numbers whose sum an operand is: 3 for all digits of float32."""
    exact = problem.dtype == "float32" and problem.layer.precision not in _ONE_PASS
    return _PARTS if exact else 1


def by_channels(x: jax.Array, block: int) -> list[jax.Array]:
    """``[N, C]`` to blocks of channels, ``[block, N]``; the last one is filled up with zeros."""
    x = jnp.pad(x.T, ((0, -x.shape[1] % block), (0, 0)))
    return jnp.split(x, x.shape[0] // block)


def in_windows(x: jax.Array, window: int) -> jax.Array:
    """``[C, N]`` twice, side by side: registers hold rows that start at any window's first row.

    Of ``R`` rows, N with some to spare, row ``r`` is in places ``r`` and ``R + 64 + r``: where a
    window's first row is no multiple of ``WINDOW_TILE`` in one, it is in the other. Channels of
    bfloat16 are in words of two, ``int32[C / 2, ...]``: the first half of them below.
    """
    rows = max(x.shape[1] + -x.shape[1] % WINDOW_TILE, window)
    x = jnp.pad(x, ((0, 0), (0, rows - x.shape[1])))
    if x.dtype == jnp.bfloat16:
        low, high = jnp.split(jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32), 2)
        x = jax.lax.bitcast_convert_type(low | (high << 16), jnp.int32)
    return jnp.concatenate([x, jnp.pad(x, ((0, 0), (WINDOW_ALIGNMENT, WINDOW_ALIGNMENT)))], axis=1)


def rows_of(x: jax.Array) -> int:
    """Rows of what :func:`in_windows` returns, those to spare too."""
    return x.shape[1] // 2 - WINDOW_ALIGNMENT


def places_of(rows: int, window: int) -> int:
    """Places that so many rows take there."""
    return 2 * max(rows + -rows % WINDOW_TILE, window) + 2 * WINDOW_ALIGNMENT


def with_rows(working: int, resident: int) -> int:
    """Vector memory of a call; with all rows there a quarter is left to XLA's own arrays."""
    return (working + resident) * 4 // 3 if resident else working


def allowed(counted: int) -> int:
    """Return the bytes that the compiler may use, a sixteenth more than was counted."""
    return counted * 17 // 16


def to_words(x: jax.Array, axis: int) -> jax.Array:
    """Channels in the order of :func:`in_windows`: of each word the lower, then the upper."""
    return _halves(x, axis, (2, x.shape[axis] // 2))


def from_words(x: jax.Array, axis: int) -> jax.Array:
    """The way back."""
    return _halves(x, axis, (x.shape[axis] // 2, 2))


def _halves(x: jax.Array, axis: int, sizes: tuple[int, int]) -> jax.Array:
    apart = x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])
    return jnp.swapaxes(apart, axis, axis + 1).reshape(x.shape)
