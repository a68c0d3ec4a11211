"""Windows of input rows for TPU kernels: the runs of consecutive rows that contain neighbors.

Rows of both sides are in lexicographic order, last axis fastest. A *column* of a kernel is a set of
near taps that differ only along the last axis. Under the taps of a column, the neighbors of a tile
of 128 consecutive output rows lie in one run of consecutive input rows, about as long as the tile.
On LiDAR sweeps and indoor scans, a run has 127 rows in the mean, and at most 162 to 273 rows in 99
of 100 tiles. Runs of strided maps are longer, because these maps skip rows between their lines.

This module computes the runs. It also has the common parts of the window kernels for dense and
depthwise weights: the map's arrays, memory requirements, and blocks of channels of operands.
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
"""Number of output rows of one tile."""
WINDOW_ALIGNMENT = 64
"""Windows start at input rows that are multiples of this number."""
LONGEST_COLUMN = 16
"""Largest distance between the first and the last tap of a column, in cells."""

# Number of bfloat16 channels that fill the sublanes of a register.
_CHANNELS = 16
CHANNELS = 128
"""Number of lanes of a register. More channels are cut into blocks of 64 or of multiples of 128."""

# On LiDAR sweeps and indoor scans, 88 to 100 % of the tiles of 128 rows need no more than 256 rows
# from an aligned start. The longest run had 562 rows.
SHORTEST = 256
"""Number of rows of the shortest windows."""
# Pairs of rows of a window, and a factor on the usual number of tiles of a step. With twice as many
# tiles, a tile takes 4 to 10 % less time (counted on v5e and v6e). But if one tile has a longer
# run, all tiles of the step are visited again: 2 % more visits on thin LiDAR, 14 to 20 % more on
# dense scans and rooms.
_SIZES = ((SHORTEST, 1), (512, 1), (SHORTEST, 2))
SPILLED = 2**20
"""Bytes of vector memory reserved for values that do not fit in registers."""
# Every column and tap is separate code, so more taps would take long to compile. This is 7 x 7 x 7.
_MOST_TAPS = 343
# A float32 number is the sum of three bfloat16 numbers, which have 8 significant bits each.
_PARTS = 3
# Precisions for which one product of bfloat16 operands is enough.
_ONE_PASS = ("default", "BF16_BF16_F32")

Columns = tuple[tuple[int, ...], ...]


class Steps(Protocol):
    """Block sizes: the attributes that both ``implicit_gemm.tpu`` and ``depthwise.tpu`` use.

    :class:`voxax.kernels.implicit_gemm.tpu.Blocks` describes the attributes.
    """

    @property
    def window(self) -> int: ...
    @property
    def stripes(self) -> int: ...
    @property
    def tiles(self) -> int: ...


_Blocks = TypeVar("_Blocks", bound=Steps)


@functools.lru_cache(maxsize=1024)
def columns_of(spec: KernelSpec | None, num_offsets: int) -> Columns:
    """Group the K taps into columns of near taps that differ only along the last axis.

    Returns the indices of each column's taps, in the order of their offsets.

    Args:
      spec: offsets and dilation of the taps. If None, every tap is a column by itself.
      num_offsets: K, the number of taps.
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
    """Find, per tile of output rows and column of taps, the run of input rows with all neighbors.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1.
      columns: taps of each column.

    Returns:
      ``int32[2, tiles, columns]``: the first input row, rounded down to ``WINDOW_ALIGNMENT``, and
      the number of rows from there to the last neighbor. Both are 0 if the tile has no neighbor.
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
"""The windows of both neighbor tables: ``windows`` and ``transposed_windows``."""


def tiles_of_visits(
    lengths: jax.Array, window: int, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """List the visits (steps) of all tiles: each covers the next ``window`` rows of a tile's runs.

    Args:
      lengths: ``int32[tiles, windows]``, number of rows of each run of a tile. A run is consecutive
        input rows that contain the neighbors.
      window: number of rows of each run that one visit covers.
      most: length of the list, see :func:`most_visits`.

    Returns:
      ``(of_place int32[most], first int32[tiles], ends int32[tiles])``. ``of_place`` is the tile of
      each visit, padded with the last tile. The visits of a tile are the entries ``first`` to
      ``ends - 1`` of this list.
    """
    # A tile has max_c ceil(length_c / window) visits.
    number = jnp.max(-(-lengths // window), axis=1)
    ends = jnp.cumsum(number, dtype=jnp.int32)
    places = jnp.arange(most, dtype=jnp.int32)
    # The tile of a place is the number of tiles that end at or before it. All are compared, because
    # a search on TPUs would gather for one place after another.
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
    """Return an upper bound of the number of visits of all tiles, see :func:`tiles_of_visits`.

    The bound is valid if input and output rows are in lexicographic order, as in every map that
    voxax builds.

    Args:
      spec: offsets and dilation of the taps. If None, every column must be a single tap.
      columns: taps of each column, from :func:`columns_of`.
      in_capacity: number of input rows.
      tiles: number of tiles of output rows.
      window: number of input rows that one visit covers, for each tile and column.
      tiles_of_step: number of tiles of one visit.
    """
    # A tile needs max_c ceil(length_c / window) visits, at most 1 + sum_c (length_c - 1) // window.
    # The lengths of a column add up to at most the number of input rows, plus for each tile:
    # - the column's reach, because runs of a column overlap only where two tiles meet, by less than
    #   the reach;
    # - WINDOW_ALIGNMENT, because a window may start up to WINDOW_ALIGNMENT - 1 rows early.
    more = 0
    for column in columns:
        reach = 0
        if spec is not None:
            last = spec.dilated_offsets[list(column), -1]
            reach = int(last.max() - last.min()) + 1
        more += (in_capacity + tiles * (WINDOW_ALIGNMENT + reach)) // window
    return -(-tiles // tiles_of_step) + more


def reads(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Return the names of the map's two arrays that a product reads: a table and its windows.

    ``symmetric``, a layer's :attr:`~voxax.kernels.kernel.Layer.symmetric`, decides which neighbor
    table dgrad reads. :func:`find_windows` describes the windows.
    """
    del parameters
    if product == "dgrad" and not symmetric:
        return ("transposed_neighbors", "transposed_windows")
    return ("neighbors", "windows")


@dataclasses.dataclass(frozen=True)
class MapArrays:
    """The arrays of a kernel map that a window kernel reads.

    Attributes:
      table: ``int32[K, M]``, the transpose of the neighbor table.
      windows: windows of the table, ``int32[2, tiles, columns]``, see :func:`find_windows`.
      columns: taps of each column.
    """

    table: jax.Array
    windows: jax.Array
    columns: Columns

    @classmethod
    def of(cls, problem: Problem, views: Views) -> MapArrays:
        """Take the arrays that ``problem`` reads, see :func:`reads`, from ``views``."""
        name, layer = table_name(problem), problem.layer
        windows = views["windows" if name == "neighbors" else "transposed_windows"]
        return cls(views[name].T, windows, columns_of(layer.spec, layer.num_offsets))


def unfit(problem: Problem, takes: str, dtype_reason: str | None) -> str | None:
    """Return the reason why window kernels cannot run this problem, or None; memory is not checked.

    Args:
      problem: the product.
      takes: a text whose last word is the kind of weights that the kernels multiply, for example
        "the window kernels multiply dense". The message for other kinds begins with this text.
      dtype_reason: why the kernels do not take the problem's dtype, or None if they do.
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
    """Return the block sizes to measure: at most one for each of a few pairs ``(window, times)``.

    For each pair, the first of ``blocks_of(window, times)`` that fits into vector memory is taken.
    It is left out if it does not fit into scalar memory.

    Args:
      hardware: the chip.
      blocks_of: function of ``(window, times)`` that yields blocks, the best first. ``window`` is
        the rows of a window, ``times`` a factor on the usual number of tiles of a step.
      vmem_bytes: function from blocks to the bytes of vector memory that they need.
      smem_bytes: function from blocks to the bytes of scalar memory that they need.
    """
    found: dict[_Blocks, None] = {}
    for window, times in _SIZES:
        # XLA's own arrays take a sixteenth.
        most = (hardware.vmem_bytes or 0) * 15 // 16
        fits = (b for b in blocks_of(window, times) if vmem_bytes(b) <= most)
        best = next(fits, None)
        if best is not None and smem_bytes(best) <= free_smem(hardware):
            found[best] = None
    return list(found)


def alike(found: list[_Blocks], chosen: _Blocks) -> _Blocks | None:
    """Return the first blocks of ``found`` with the window and the number of tiles of ``chosen``.

    If no blocks match, return ``found[0]``, or None if ``found`` is empty.
    """
    same = (b for b in found if (b.window, b.tiles) == (chosen.window, chosen.tiles))
    return next(same, found[0] if found else None)


def block_sizes(channels: int) -> list[int]:
    """Return the sizes of blocks into which ``channels`` can be cut, the largest first."""
    if channels <= CHANNELS:
        return [-(-channels // _CHANNELS) * _CHANNELS]
    whole = -(-channels // CHANNELS)
    sizes = {-(-whole // pieces) * CHANNELS for pieces in range(1, whole + 1)}
    return [*sorted(sizes, reverse=True), CHANNELS // 2]


def scalar_bytes(problem: Problem, window: int, stripes: int, tiles_of_step: int) -> int:
    """Return the bytes of scalar memory that a kernel call needs for its list of visits (steps).

    A visit covers ``window`` input rows for each of ``tiles_of_step`` tiles. ``stripes`` is the
    number of parts of the list.
    """
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    tiles = -(-problem.out_rows // WINDOW_TILE)
    visits = most_visits(
        problem.layer.spec, columns, problem.gathered_rows, tiles, window, tiles_of_step
    )
    scalars = (tiles + tiles_of_step) * (1 + 2 * len(columns))
    return 4 * (visits + scalars + stripes + 1)


def free_smem(hardware: HardwareInfo) -> int:
    """Return the bytes of the chip's scalar memory that a kernel's arguments can take."""
    # In a trial, programs with all but 2 KiB of 1 MiB compiled.
    return max(0, (hardware.smem_bytes or 0) - 4096)


def parts_of(problem: Problem) -> int:
    """Return into how many bfloat16 numbers each number is split: 3 for exact float32, else 1."""
    exact = problem.dtype == "float32" and problem.layer.precision not in _ONE_PASS
    return _PARTS if exact else 1


def by_channels(x: jax.Array, block: int) -> list[jax.Array]:
    """Cut ``x [N, C]`` into blocks of channels, ``[block, N]`` each; pad the last with zeros."""
    x = jnp.pad(x.T, ((0, -x.shape[1] % block), (0, 0)))
    return jnp.split(x, x.shape[0] // block)


def in_windows(x: jax.Array, window: int) -> jax.Array:
    """Return ``x [C, N]`` as ``[C, 2 R + 128]``: two copies, so that any window can be aligned.

    R is N rounded up to a multiple of 128, but at least ``window``, the rows of a window. Row ``r``
    is in the columns ``r`` and ``R + 64 + r``. The first row of a window is a multiple of 64, so it
    is in a column that is a multiple of ``WINDOW_TILE``, where a register starts. For bfloat16 the
    result is ``int32[C / 2, ...]``, where a word has channel ``c`` in the low half and channel
    ``c + C / 2`` in the high half.
    """
    rows = max(x.shape[1] + -x.shape[1] % WINDOW_TILE, window)
    x = jnp.pad(x, ((0, 0), (0, rows - x.shape[1])))
    if x.dtype == jnp.bfloat16:
        low, high = jnp.split(jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32), 2)
        x = jax.lax.bitcast_convert_type(low | (high << 16), jnp.int32)
    return jnp.concatenate([x, jnp.pad(x, ((0, 0), (WINDOW_ALIGNMENT, WINDOW_ALIGNMENT)))], axis=1)


def rows_of(x: jax.Array) -> int:
    """Return the number of rows ``R``, with padding, of an array from :func:`in_windows`."""
    return x.shape[1] // 2 - WINDOW_ALIGNMENT


def places_of(rows: int, window: int) -> int:
    """Return the length of the last axis of :func:`in_windows` for an input of ``rows`` rows."""
    return 2 * max(rows + -rows % WINDOW_TILE, window) + 2 * WINDOW_ALIGNMENT


def with_rows(working: int, resident: int) -> int:
    """Return the bytes of vector memory that a call needs: ``working`` plus ``resident``.

    ``resident`` is for input rows that stay in vector memory, ``working`` for everything else. If
    there are resident rows, a third is added for XLA's own arrays.
    """
    return (working + resident) * 4 // 3 if resident else working


def allowed(counted: int) -> int:
    """Return the compiler's limit of vector memory, in bytes: ``counted`` plus a sixteenth."""
    return counted * 17 // 16


def to_words(x: jax.Array, axis: int) -> jax.Array:
    """Reorder channels along ``axis`` to ``0, C / 2, 1, C / 2 + 1, ...``.

    So the two channels of each 32-bit word of :func:`in_windows` become neighbors.
    """
    return _halves(x, axis, (2, x.shape[axis] // 2))


def from_words(x: jax.Array, axis: int) -> jax.Array:
    """Restore the order of channels along ``axis``; undo :func:`to_words`."""
    return _halves(x, axis, (x.shape[axis] // 2, 2))


def _halves(x: jax.Array, axis: int, sizes: tuple[int, int]) -> jax.Array:
    apart = x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])
    return jnp.swapaxes(apart, axis, axis + 1).reshape(x.shape)
