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
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.kernel import Parameters, Problem, Product, Views
from voxax.algorithms.rows import table_name
from voxax.geometry.kernel_map import View, by_name
from voxax.geometry.kernel_spec import KernelSpec
from voxax.hardware import HardwareInfo

WINDOW_TILE = 128
"""Output rows of one tile."""
WINDOW_ALIGNMENT = 16
"""Windows start at multiples of it: what TPUs copy of 16-bit rows."""
LONGEST_COLUMN = 16
"""Cells from the first to the last tap of a column, at most."""

CHANNELS = 128
"""Channels are taken in multiples of it: the lanes of a TPU's registers."""

# Of tiles of 128 rows on LiDAR sweeps and indoor scans, 98.6 to 100 % have no window longer than
# 256 rows, and none had one longer than 512.
_WINDOWS = (256, 512)
SHORTEST = _WINDOWS[0]
"""Rows of the shorter windows."""
# Every column and tap is code of its own, so many taps would take long to compile. 7 x 7 x 7.
_MOST_TAPS = 343
# float32 is the sum of three bfloat16 numbers, of 8 bits each.
_PARTS = 3
# Of these precisions one pass over bfloat16 operands is enough.
_ONE_PASS = ("default", "BF16_BF16_F32")

Columns = tuple[tuple[int, ...], ...]
_Blocks = TypeVar("_Blocks")


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
    alignment: int = WINDOW_ALIGNMENT,
) -> int:
    """The most visits of all tiles, where one covers ``window`` rows of each column.

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


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The table of the side that is written, its windows, and the other table.

    The other table says which rows of the gathered operand are read at all.
    """
    del parameters
    if symmetric:
        return ("neighbors", "windows")
    windows = "windows" if product != "dgrad" else "transposed_windows"
    return ("neighbors", "transposed_neighbors", windows)


@dataclasses.dataclass(frozen=True)
class MapArrays:
    """The arrays of a map that a product reads.

    Attributes:
      table: ``int32[M, K]``, of the side that is written.
      other: the table of the side that is gathered from.
      windows: of ``table``, see :func:`find_windows`.
      columns: taps of each column.
    """

    table: jax.Array
    other: jax.Array
    windows: jax.Array
    columns: Columns

    @classmethod
    def of(cls, problem: Problem, views: Views) -> MapArrays:
        """The arrays among the views that :func:`reads` names."""
        name, layer = table_name(problem), problem.layer
        other = name
        if not layer.symmetric:
            (other,) = (n for n in ("neighbors", "transposed_neighbors") if n != name)
        windows = views["windows" if name == "neighbors" else "transposed_windows"]
        columns = columns_of(layer.spec, layer.num_offsets)
        return cls(views[name], views[other], windows, columns)

    @property
    def by_tap(self) -> jax.Array:
        """``int32[K', tiles * WINDOW_TILE]``: the table tap by tap, filled up with -1."""
        rows, taps = self.table.shape
        fill = ((0, -taps % 8), (0, WINDOW_TILE * self.windows.shape[1] - rows))
        return jnp.pad(self.table.T, fill, constant_values=-1)


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
    blocks_of: Callable[[int], Iterable[_Blocks]],
    vmem_bytes: Callable[[_Blocks], int],
    smem_bytes: Callable[[_Blocks], int],
) -> list[_Blocks]:
    """The first blocks of each length of windows that fit vector memory, if their scalars fit."""
    found = []
    for window in _WINDOWS:
        fits = (b for b in blocks_of(window) if vmem_bytes(b) <= (hardware.vmem_bytes or 0))
        best = next(fits, None)
        if best is not None and smem_bytes(best) <= free_smem(hardware):
            found.append(best)
    return found


def block_sizes(channels: int) -> list[int]:
    """Multiples of :data:`CHANNELS` that cut ``channels`` into equal blocks, the largest first."""
    whole = max(1, -(-channels // CHANNELS))
    return sorted({-(-whole // pieces) * CHANNELS for pieces in range(1, whole + 1)}, reverse=True)


def scalar_bytes(problem: Problem, window: int, alignment: int, bounds: int) -> int:
    """Scalar memory of a call: its visits, the windows of each tile, and so many bounds."""
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    tiles = -(-problem.out_rows // WINDOW_TILE)
    sizes = problem.gathered_rows, tiles, window, alignment
    visits = most_visits(problem.layer.spec, columns, *sizes)
    return 4 * (visits + tiles * (1 + 2 * len(columns)) + bounds)


def free_smem(hardware: HardwareInfo) -> int:
    """Scalar memory that arguments may fill: all but 2 KiB of 1 MiB was seen to compile."""
    return max(0, (hardware.smem_bytes or 0) - 4096)


def parts_of(problem: Problem) -> int:
    """bfloat16 numbers whose sum an operand is: 3 for all digits of float32."""
    exact = problem.dtype == "float32" and problem.layer.precision not in _ONE_PASS
    return _PARTS if exact else 1


def padded(x: jax.Array, rows: int, block: int) -> jax.Array:
    """``[N, C]`` with zeros up to so many rows, and up to whole blocks of channels."""
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, -x.shape[1] % block)))


def split(x: jax.Array, block: int, axis: int) -> list[jax.Array]:
    """Blocks along an axis."""
    return jnp.split(x, x.shape[axis] // block, axis)
