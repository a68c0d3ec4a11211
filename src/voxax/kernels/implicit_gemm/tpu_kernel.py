"""The Pallas kernels of ``implicit_gemm`` on TPUs: they select neighbors by permuting registers.

Each step of the grid is one *visit*. A visit covers a *group* of tiles of output rows, and one
window of input rows for each tile and column of taps (``windows.py``). A group has several tiles,
because with a single tile a step would wait for its last results. If the neighbors of a tile lie
further apart than a window, its group is visited again for the next window of each column. Input
rows stay in vector memory if they fit. Otherwise windows are copied from HBM two steps ahead.

A step selects the rows of its visit, and multiplies the rows that the previous step selected. So
the matrix unit works while rows are selected. Arrays are transposed, ``[channels, rows]``, which is
XLA's layout for arrays of few channels.

The rows of a window are in the lanes of registers. One instruction permutes the lanes of a
register, so that lane ``m`` of the result is the neighbor of output row ``m``. It moves words of 32
bits, which are two channels of bfloat16. A window has several registers; the kernel permutes each
and selects the right result for each lane. The selected rows of all taps are stacked as
``[K * C_in, rows]``. One product multiplies them by all weights (forward, dgrad) or by the
cotangent (wgrad). Missing neighbors become zeros before the product.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.hardware.pallas_checks import bounds_checks
from voxax.kernels.implicit_gemm.windows import (
    WINDOW_ALIGNMENT,
    WINDOW_TILE,
    Columns,
    rows_of,
)

# A sum of this many products of two 8-bit integers is exact in float32: 2^14 * 2^10 = 2^24.
_EXACT_TERMS = 1024
# Number of buffers for windows in vector memory: one is read while copies to two others are under
# way, because a copy takes about a microsecond and a step may be shorter.
_SLOTS = 3


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The static parameters of a call of a window kernel, dense or depthwise.

    Attributes:
      columns: for each column (near taps that differ only along the last axis) its taps.
      window: number of rows of a window, a multiple of ``WINDOW_TILE``.
      parts: into how many bfloat16 numbers each number of the operands is split: 3 for all digits
        of float32, or 1.
      resident: whether all input rows are in vector memory.
      tiles: number of tiles of ``WINDOW_TILE`` rows that a step takes together. Each tile has its
        own windows.
      vmem_bytes: bytes of vector memory that the compiler may use.
      interpret: True to run as plain JAX on any platform, or parameters of Pallas' TPU interpreter.
      total: dtype of the sums: float32, or int32 for operands whose values are 8-bit integers.
      result: dtype of the result of forward and dgrad.
    """

    columns: Columns
    window: int
    parts: int
    resident: bool
    tiles: int
    vmem_bytes: int
    interpret: Any = False
    total: Any = jnp.float32
    result: Any = jnp.float32

    @property
    def taps(self) -> int:
        """K, the number of taps."""
        return sum(map(len, self.columns))

    @property
    def rows(self) -> int:
        """Number of output rows of a step."""
        return self.tiles * WINDOW_TILE

    @property
    def tile_lanes(self) -> list[slice]:
        """For each tile of a step, the slice of the tile's rows among the step's output rows."""
        return [slice(at, at + WINDOW_TILE) for at in range(0, self.rows, WINDOW_TILE)]

    @property
    def windows(self) -> int:
        """Number of windows of a step: one for each tile and column."""
        return self.tiles * len(self.columns)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visits:
    """The list of visits (steps) of a kernel call, in scalar memory, to be read ahead.

    All arrays are ``int32`` and one-dimensional.

    Attributes:
      groups: ``[length of the list]``, the group of tiles of each visit. The visits of a group are
        consecutive.
      first: ``[groups]``, the index in the list of a group's first visit.
      starts: ``[groups * windows]``, first input row of the first window of each tile and column;
        not negative, and a multiple of ``WINDOW_ALIGNMENT``.
      lengths: ``[groups * windows]``, number of rows from ``starts`` to the last neighbor.
      bounds: ``[stripes + 1]``, the index of each stripe's first visit, and the number of visits.
        No group has visits in two stripes.
    """

    groups: jax.Array
    first: jax.Array
    starts: jax.Array
    lengths: jax.Array
    bounds: jax.Array

    @property
    def scalars(self) -> tuple[jax.Array, ...]:
        """All arrays, in the order of the attributes."""
        return self.groups, self.first, self.starts, self.lengths, self.bounds


# Jitted, so that layers of the same sizes are traced and compiled once.
@functools.partial(jax.jit, static_argnums=0)
def product(config: TileConfig, visits: Visits, table: Any, x: Any, w: Any) -> jax.Array:
    """Run forward or dgrad: return ``y[:, m] = sum_k w[k]^T x[:, table[k, m]]``, ``[C_out, M]``.

    Values of a tile that no visit covers are undefined.

    Args:
      config: static parameters.
      visits: the list of visits (steps).
      table: ``int32[K, M]``, the input row that each output row reads by each tap, or -1 for none.
      x: the input from ``windows.in_windows``: ``int32[C_in / 2, ...]``, whose words are two
        channels of bfloat16, or ``float32[C_in, ...]`` if ``config.parts`` is above 1.
      w: ``bfloat16[parts * C_out, K * C_in]``, the largest part first. C_in and C_out are multiples
        of 16. C_in is ordered as in ``windows.to_words`` for one part.
    """
    multiply = functools.partial(_times_weights, config)
    return call_of_rows(config, visits, multiply, table, x, w, w.shape[0] // config.parts)


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """Run wgrad: ``dw[k] = sum_m x[:, table[k, m]] dy[:, m]^T``, as ``[stripes, C_out, K * C_in]``.

    Each stripe, a part of the visits, has a sum of its own; the caller adds these sums. The
    arguments are those of :func:`product`, except ``dy``: ``[C_out, M]``, float32 if
    ``config.parts`` is above 1, else bfloat16.
    """
    shape = dy.shape[0], config.taps * channels_of(x)
    return call_of_weights(
        config, visits, functools.partial(_add_weights, config), table, x, dy, shape
    )


@functools.partial(jax.jit, static_argnums=0)
def gradients(
    config: TileConfig, visits: Visits, table: Any, dy: Any, w: Any, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Run dgrad and wgrad together, since both select the rows ``dy[:, table[k, n]]``.

    The arguments are those of :func:`product` for dgrad, which gathers ``dy``, and
    ``x``: ``[C_in, N]``, float32 if ``config.parts`` is above 1, else bfloat16.

    Returns:
      ``dx[:, n] = sum_k w[k]^T dy[:, table[k, n]]``, ``[C_in, N]``, and
      ``dw[k] = sum_n dy[:, table[k, n]] x[:, n]^T``, ``[stripes, C_in, K * C_out]``. The caller
      sums ``dw`` over the stripes.
    """
    return call_of_gradients(
        config,
        visits,
        functools.partial(_times_weights, config),
        functools.partial(_add_weights, config),
        table,
        dy,
        w,
        x,
        (x.shape[0], config.taps * channels_of(dy)),
    )


def _times_weights(config: TileConfig, picked: Any, w_ref: Any) -> jax.Array:
    """Multiply the rows gathered for a visit by all weights; return ``[C_out, config.rows]``.

    ``picked`` has the rows of all taps, see :func:`_pick`. ``w_ref`` is
    ``[parts * C_out, K * C_in]``.
    """
    channels, terms = w_ref.shape[0] // config.parts, w_ref.shape[1]
    y = jnp.zeros((channels, config.rows), config.total)
    # w x = sum_ij w_i x_j over i + j < parts, counted from 0, the smallest terms first. The other
    # terms are below the precision of float32.
    for part in reversed(range(config.parts)):
        # One product has all parts of the weights that meet this part of the rows.
        rows = config.parts - part
        for begin, size in _pieces(config, terms):
            product = _dot(
                w_ref[: rows * channels, begin : begin + size],
                _as_bfloat16(picked[part, begin // 2 : (begin + size) // 2]),
                0,
            ).astype(config.total)
            for row in reversed(range(rows)):
                y = y + product[row * channels : (row + 1) * channels]
    return y


def _add_weights(config: TileConfig, picked: Any, tile: jax.Array, out: Any) -> None:
    """Add one visit's terms of the weight gradient to ``out[0]``, ``[C, K * C_gathered]``.

    They are the product of ``tile``, ``[C, rows]``, the operand that is not gathered, and the
    transpose of ``picked``, the gathered rows of all taps.
    """
    channels, others = tile.shape[0], _in_parts(tile, config.parts)
    for part in reversed(range(config.parts)):
        rows = config.parts - part
        terms = _dot(jnp.concatenate(others[:rows], axis=0), _as_bfloat16(picked[part]), 1)
        terms = terms.astype(config.total)
        for row in reversed(range(rows)):
            out[0] += terms[row * channels : (row + 1) * channels]


def call_of_rows(
    config: TileConfig,
    visits: Visits,
    multiply: Callable[..., jax.Array],
    table: jax.Array,
    x: jax.Array,
    w: jax.Array,
    channels: int,
) -> jax.Array:
    """Run a kernel that computes the features of each output row; return ``[channels, M]``.

    Dense and depthwise kernels use this function. Other arguments are those of :func:`product`.

    Args:
      multiply: ``multiply(picked, w_ref)`` returns what a visit adds to the result,
        ``[channels, config.rows]``: the product of the neighbors' features for all taps,
        ``picked``, and the weight, a ref of ``w``.
      channels: number of channels of the result.
    """

    def body(step: Step, picked: Any, operands: Any, outs: Any, total: Any) -> None:
        (w_ref,), (out,) = operands, outs
        _add_rows(step, multiply(picked, w_ref), out, total)

    (y,) = _call(
        config,
        visits,
        body,
        table,
        x,
        [_whole(w)],
        [_tiles(config, visits, table, channels)],
        scratch=[pltpu.VMEM((channels, config.rows), config.total)],
    )
    return y[:, : table.shape[1]]


def call_of_weights(
    config: TileConfig,
    visits: Visits,
    add: Callable[..., None],
    table: jax.Array,
    x: jax.Array,
    dy: jax.Array,
    shape: tuple[int, int],
) -> jax.Array:
    """Run a kernel that sums over all visits of each stripe; return ``[stripes, *shape]``.

    Dense and depthwise kernels use this function. Other arguments are those of
    :func:`weight_product`.

    Args:
      add: ``add(picked, dy, out)`` adds the terms of a visit to ``out``. ``picked`` has the
        neighbors' features for all taps. ``dy`` is ``[C_out, config.rows]``, zero in rows without
        neighbors.
      shape: shape of the sum.
    """

    def body(step: Step, picked: Any, operands: Any, outs: Any, last: Any) -> None:
        del step
        (dy_ref,), (out,) = operands, outs
        add(picked, _with_neighbors(dy_ref, last), out)

    (dw,) = _call(
        config,
        visits,
        body,
        table,
        x,
        [(dy, None)],
        [_sums(config, visits, shape, x)],
        scratch=[pltpu.VMEM((1, config.rows), jnp.int32)],
    )
    return dw


def call_of_gradients(
    config: TileConfig,
    visits: Visits,
    multiply: Callable[..., jax.Array],
    add: Callable[..., None],
    table: jax.Array,
    dy: jax.Array,
    w: jax.Array,
    x: jax.Array,
    shape: tuple[int, int],
) -> tuple[jax.Array, jax.Array]:
    """Return the results of :func:`call_of_rows` and :func:`call_of_weights` from one kernel.

    The arguments are those of :func:`gradients`, ``multiply`` of :func:`call_of_rows`, and ``add``
    and ``shape`` of :func:`call_of_weights`.
    """

    def body(step: Step, picked: Any, operands: Any, outs: Any, last: Any, total: Any) -> None:
        w_ref, x_ref = operands
        dx, dw = outs
        _add_rows(step, multiply(picked, w_ref), dx, total)
        add(picked, _with_neighbors(x_ref, last), dw)

    dx, dw = _call(
        config,
        visits,
        body,
        table,
        dy,
        [_whole(w), (x, None)],
        [_tiles(config, visits, table, len(x)), _sums(config, visits, shape, dy)],
        scratch=[
            pltpu.VMEM((1, config.rows), jnp.int32),
            pltpu.VMEM((len(x), config.rows), config.total),
        ],
    )
    return dx[:, : table.shape[1]], dw


def _add_rows(step: Step, y: jax.Array, out: Any, total: Any) -> None:
    """Add ``y``, the products of a step, to its group's sums ``total``; copy the sums to ``out``.

    The sums start from zero at the group's first visit.
    """
    # The first visit of a group starts from zero.
    y = y + jnp.where(step.turn == 0, jnp.zeros_like(y), total[...])
    total[...] = y
    out[...] = y.astype(out.dtype)


def _with_neighbors(tile: Any, last: Any) -> jax.Array:
    """Return ``tile [C, rows]`` with zeros in the rows that have no neighbor.

    ``last``, ``[1, rows]``, is the largest neighbor of each row, -1 if it has none.
    """
    rows = tile[...]
    return jnp.where(last[...] >= 0, rows, jnp.zeros_like(rows))


@dataclasses.dataclass(frozen=True)
class _Result:
    """The description of one result of a kernel call.

    Attributes:
      shape: shape and dtype of the whole result.
      spec: function that returns the ``BlockSpec``. Its argument is a function from the indices of
        the grid to the :class:`Step`.
      summed: whether the result is a sum over all visits of a stripe. It then starts from zero.
    """

    shape: Any
    spec: Callable[[Callable[..., Step]], pl.BlockSpec]
    summed: bool


def _whole(w: jax.Array) -> tuple[jax.Array, pl.BlockSpec]:
    """Return ``w`` and its ``BlockSpec``, for an operand that every step reads whole."""
    return w, pl.BlockSpec(w.shape, lambda *_: (0, 0), pipeline_mode=pl.Buffered(1))


def _tiles(config: TileConfig, visits: Visits, table: jax.Array, channels: int) -> _Result:
    """Describe the result of :func:`call_of_rows`: ``[channels, M]``, padded to whole groups."""
    rows, stripes = table.shape[1], visits.bounds.shape[0] - 1
    if config.interpret:  # JAX 0.12's interpreter takes no part of a block of shared memory.
        rows += -rows % config.rows
    if stripes > 1:
        rows = (visits.first.shape[0] + 1) * config.rows
    return _Result(
        _compat.shape_like((channels, rows), config.result, table),
        # A stripe without visits writes to an extra group at the end, which no other stripe writes.
        lambda step: pl.BlockSpec(
            (channels, config.rows), lambda *place: (0, step(*place).written)
        ),
        summed=False,
    )


def _sums(config: TileConfig, visits: Visits, shape: tuple[int, int], like: jax.Array) -> _Result:
    """Describe the result of :func:`call_of_weights`: sums by stripe, ``[stripes, *shape]``."""
    whole = (visits.bounds.shape[0] - 1, *shape)
    return _Result(
        _compat.shape_like(whole, config.total, like),
        lambda step: pl.BlockSpec((1, *shape), lambda stripe, *_: (stripe, 0, 0)),
        summed=True,
    )


class Step:
    """One step of the kernel's grid: the groups of tiles that it works on, as traced scalars.

    Step ``s`` of a stripe gathers the rows of visit ``s`` and multiplies the rows of visit
    ``s - 1``. So a stripe has one step more than visits. The product of its first step is not used.

    Attributes:
      number: number of the step in its stripe.
      begins: whether this is the first step of the stripe.
      ends: whether this is the last step of the stripe that does anything.
      live: whether the step does anything. A stripe may have fewer visits than another, or none.
      group: the group whose rows are selected.
      before: the group whose rows are multiplied.
      written: the group whose results are written.
      turn: number of earlier visits of ``before``.
    """

    def __init__(
        self, config: TileConfig, stripe: Any, step: Any,
        groups: Any, first: Any, starts: Any, lengths: Any, bounds: Any,
    ) -> None:  # fmt: skip
        begin, end = bounds[stripe], bounds[stripe + 1]
        self.number, self._place, self._end = step, begin + step, end
        self.begins, self.ends = step == 0, begin + step == end
        self.live = jnp.logical_and(begin < end, begin + step <= end)
        self.group = groups[self._known(begin + step)]
        before = self._known(jnp.maximum(begin + step - 1, begin))
        self.before = groups[before]
        self.written = jnp.where(begin < end, self.before, first.shape[0])
        self.turn = before - first[self.before]
        self._config, self._scalars = config, (groups, first, starts, lengths)

    def _known(self, place: Any) -> Any:
        """Clip ``place``, an index into the list of visits, to the stripe's last visit."""
        return jnp.maximum(jnp.minimum(place, self._end - 1), 0)

    def windows(self, ahead: int = 0) -> list[Any]:
        """Return the first input row of each window that the step ``ahead`` steps later reads.

        The largest int32 stands for a window that does not exist.
        """
        config, (groups, first, starts, lengths) = self._config, self._scalars
        wanted, none = self._place + ahead, jnp.iinfo(jnp.int32).max
        place = self._known(wanted)
        group = groups[place]
        # The n-th visit of a group reads rows start + n * window, ... of each column.
        passed = (place - first[group]) * config.window
        # There are no windows after the last visit.
        passed = jnp.where(wanted < self._end, passed, none)
        found = []
        for window in range(config.windows):
            at = group * config.windows + window
            found.append(jnp.where(lengths[at] > passed, starts[at] + passed, none))
        return found


def _neighbors(config: TileConfig, table: Any, rows: int, group: Any) -> jax.Array:
    """Return the neighbors of a group's output rows, ``int32[K, config.rows]``.

    ``table`` is a reference to them. ``rows`` is the number of output rows. Columns of the last
    group after these become -1.
    """
    found = table[...]
    if rows % config.rows == 0:
        return found
    row = group * config.rows + jax.lax.broadcasted_iota(jnp.int32, found.shape, 1)
    return jnp.where(row < rows, found, jnp.int32(-1))


def _pick(
    config: TileConfig, starts: list[Any], rows: int, table: jax.Array, windows: Any, picked: Any
) -> None:
    """Gather the rows of every tap and write them to ``picked[part, tap * words + word, row]``.

    A gathered row has ``words`` words of 32 bits. Rows whose neighbor is absent or outside the
    window become zero.

    Args:
      config: static parameters.
      starts: first input row of each window.
      rows: number of input rows.
      table: the neighbors of the step's group, ``int32[K, config.rows]``.
      windows: reference to the windows, or to all input rows if they are resident.
      picked: reference to which the rows are written.
    """
    words = picked.shape[1] // config.taps
    for number, start in enumerate(starts):
        tile, column = divmod(number, len(config.columns))
        lanes = config.tile_lanes[tile]
        begin, at = _at_hand(config, start, rows)
        blocks = []
        for block in range(0, config.window, WINDOW_TILE):
            if config.resident:
                place = pl.multiple_of(at + block, WINDOW_TILE)
                blocks.append(windows[:, pl.ds(place, WINDOW_TILE)])
            else:
                blocks.append(windows[number, :, block : block + WINDOW_TILE])
        # All taps of a column read the same window: place = table[tap] - begin.
        for tap in config.columns[column]:
            row = table[tap : tap + 1, lanes]
            found = _rows_at(blocks, jnp.where(row >= start, row - begin, jnp.int32(-1)))
            parts = [found]
            if config.parts > 1:
                parts = [pltpu.bitcast(part, jnp.int32) for part in _in_parts(found, config.parts)]
            for part, values in enumerate(parts):
                picked[part, tap * words : (tap + 1) * words, lanes] = values


def _at_hand(config: TileConfig, start: Any, rows: int) -> tuple[Any, Any]:
    """Return ``(row, column)``: a window's first row, and its column in ``windows.in_windows``.

    The window begins at row ``start``, or earlier if fewer than ``config.window`` of the ``rows``
    input rows follow. An array from ``in_windows`` has every row twice along its last axis, so
    ``column`` is a multiple of ``WINDOW_TILE``.
    """
    begin = jnp.minimum(start, rows - config.window)
    # Row r is at places r and R + 64 + r, where R = rows: one of both is a multiple of 128.
    odd = jnp.bitwise_and(begin, jnp.int32(WINDOW_ALIGNMENT)) != 0
    return begin, jnp.where(odd, begin + (rows + WINDOW_ALIGNMENT), begin)


def _rows_at(blocks: list[jax.Array], place: jax.Array) -> jax.Array:
    """Return a row of a window for each lane, ``[words, WINDOW_TILE]``.

    The window consists of ``blocks`` of 128 rows, ``[words, 128]``. ``place`` has the index in the
    window of each lane's row. An index outside the window gives zero.
    """
    shape = blocks[0].shape
    lane = jnp.broadcast_to(jnp.bitwise_and(place, jnp.int32(WINDOW_TILE - 1)), shape)
    block = jnp.broadcast_to(jax.lax.shift_right_arithmetic(place, jnp.int32(7)), shape)
    found = jnp.zeros(shape, blocks[0].dtype)
    # place = 128 * block + lane: permute the lanes of every block, and keep the right one's result.
    for number, values in enumerate(blocks):
        moved = jnp.take_along_axis(values, lane, axis=1, mode="promise_in_bounds")
        found = jnp.where(block == number, moved, found)
    return found


def channels_of(x: jax.Array) -> int:
    """Return the number of channels of an array from ``windows.in_windows``."""
    return x.shape[0] * (2 if x.dtype == jnp.int32 else 1)


def _as_bfloat16(words: jax.Array) -> jax.Array:
    """Unpack int32 ``[words, n]`` to bfloat16 ``[2 * words, n]``, two channels for each word."""
    return pltpu.bitcast(words, jnp.bfloat16)


def _in_parts(x: jax.Array, parts: int) -> list[jax.Array]:
    """Split ``x`` into ``parts`` bfloat16 arrays whose sum is ``x``, the largest first."""
    if parts == 1:
        return [x]
    found = []
    for _ in range(parts):
        # x = x_1 + x_2 + x_3: each part has the upper 16 bits of the rest. The lower bits are cut,
        # not rounded, because a compiler may remove a conversion to bfloat16 and back.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(1 << 16))
        head = jax.lax.bitcast_convert_type(bits, jnp.float32)
        found.append(head.astype(jnp.bfloat16))
        x = x - head
    return found


def _pieces(config: TileConfig, terms: int) -> list[tuple[int, int]]:
    """Return ``(begin, size)`` of each slice of a sum of ``terms`` products for the matrix unit.

    For 8-bit integers, slices are so short that float32 adds them exactly. Otherwise there is one.
    """
    size = _EXACT_TERMS if config.total == jnp.int32 else terms
    return [(begin, min(size, terms - begin)) for begin in range(0, terms, size)]


def _dot(a: jax.Array, b: jax.Array, b_axis: int) -> jax.Array:
    """Contract axis 1 of ``a`` with ``b_axis`` of ``b``; return the sums in float32."""
    return jax.lax.dot_general(
        a,
        b,
        (((1,), (b_axis,)), ((), ())),
        precision=jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def _call(
    config: TileConfig,
    visits: Visits,
    body: Callable[..., None],
    table: jax.Array,
    x: jax.Array,
    others: list[tuple[jax.Array, pl.BlockSpec | None]],
    results: list[_Result],
    scratch: list[Any],
) -> list[jax.Array]:
    """Run a Pallas kernel whose grid is (stripes, steps), and return its results.

    Args:
      config: static parameters.
      visits: the list of visits.
      body: ``body(step, picked, others, results, *scratch)`` computes with the rows that the
        previous step selected.
      table: ``int32[K, M]``, input row or -1.
      x: the input from ``windows.in_windows``.
      others: other operands with their ``BlockSpec``. If a ``BlockSpec`` is None, a step reads the
        ``config.rows`` columns of the group whose rows the previous step selected.
      results: descriptions of the results.
      scratch: scratch arrays. If a result is summed, the first must be ``int32[1, config.rows]``.
        It receives the largest neighbor of each row of the previous step, or -1.
    """
    scalars, number = visits.scalars, len(visits.scalars)
    stripes = visits.bounds.shape[0] - 1
    words, rows = x.shape[0], rows_of(x)
    # Parts are bfloat16, two to a word, so they take half as many words as float32.
    kept = (words // 2, jnp.int32) if config.parts > 1 else (words, x.dtype)
    sums = [place for place, result in enumerate(results) if result.summed]

    def step_of(stripe: Any, step: Any, *known: Any) -> Step:
        return Step(config, stripe, step, *known)

    def run(*refs: Any) -> None:
        queue = iter(refs)
        known, (table_ref, x_ref), other_refs, outs, (picked,), own, ring = (
            tuple(itertools.islice(queue, size))
            for size in (number, 2, len(others), len(results), 1, len(scratch), len(copied))
        )
        step = step_of(pl.program_id(0), pl.program_id(1), *known)

        def compute(windows: Any) -> None:
            # First multiply the rows that the previous step selected, then overwrite them.
            body(step, picked, other_refs, outs, *own)
            neighbors = _neighbors(config, table_ref, table.shape[1], step.group)
            _pick(config, step.windows(), rows, neighbors, windows, picked)
            if sums:
                own[0][...] = jnp.max(neighbors, axis=0, keepdims=True)

        @pl.when(step.live)
        def _() -> None:
            if config.resident:
                compute(x_ref)
            else:
                _with_copies(config, step, rows, (x_ref, *ring), compute)

        # Set sums to zero in the first step, after its product, which belongs to no visit.
        for place in sums:

            @pl.when(step.begins)
            def _(out: Any = outs[place]) -> None:
                out[...] = jnp.zeros_like(out)

    copied = [
        pltpu.VMEM((_SLOTS, config.windows, words, config.window), x.dtype),
        pltpu.SemaphoreType.DMA((_SLOTS,)),
    ]
    if config.resident:
        copied = []

    def by_group(rows: int, group_of: Callable[[Step], Any]) -> pl.BlockSpec:
        return pl.BlockSpec((rows, config.rows), lambda *place: (0, group_of(step_of(*place))))

    hbm, vmem = (pl.BlockSpec(memory_space=space) for space in (pltpu.HBM, pltpu.VMEM))
    operands = [
        (table, by_group(table.shape[0], lambda step: step.group)),
        (x, vmem if config.resident else hbm),
        *((a, spec or by_group(a.shape[0], lambda step: step.before)) for a, spec in others),
    ]
    # The number of steps is traced, so padding and tiles without neighbors cost no step. There is
    # one step more than visits, which multiplies the last rows. A stripe without visits needs it
    # too, to set its sums to zero.
    steps = jnp.max(visits.bounds[1:] - visits.bounds[:-1]) + jnp.int32(1)
    call = pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=number,
            grid=(stripes, steps),
            in_specs=[spec for _, spec in operands],
            out_specs=[result.spec(step_of) for result in results],
            scratch_shapes=[
                pltpu.VMEM((config.parts, config.taps * kept[0], config.rows), kept[1]),
                *scratch,
                *copied,
            ],
        ),
        out_shape=[result.shape for result in results],
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=config.vmem_bytes,
            # Stripes are independent, so a device of two cores runs two at once. Visits of a stripe
            # are not, because they add to the same sums.
            dimension_semantics=("parallel", "arbitrary"),
            # Every window lies within its array, see _at_hand.
            disable_bounds_checks=not bounds_checks(),
        ),
        interpret=config.interpret,
    )
    arrays = [array for array, _ in operands]
    if not config.interpret:  # Plain JAX has one memory.
        arrays = [_placed(*operand) for operand in operands]
    # With x64 enabled, a Python number in an index map is 64 bits long, which the chip lacks.
    with jax.enable_x64(False):
        return call(*scalars, *arrays)


def _with_copies(
    config: TileConfig, step: Step, rows: int, refs: tuple[Any, ...], compute: Callable[..., None]
) -> None:
    """Call ``compute(windows)`` with the step's windows, which earlier steps began to copy.

    Also start to copy the windows of a later step. ``refs`` are the input rows in HBM, the buffers
    for windows, and the semaphores of the buffers.
    """
    x, windows, arrived = refs
    # The windows of visit v go to buffer v mod 3.
    slots = [jax.lax.rem(step.number + ahead, jnp.int32(_SLOTS)) for ahead in range(_SLOTS)]

    def bring(ahead: int) -> None:
        for number, start in enumerate(step.windows(ahead)):
            place = pl.multiple_of(_at_hand(config, start, rows)[1], WINDOW_TILE)
            pltpu.make_async_copy(
                x.at[:, pl.ds(place, config.window)],
                windows.at[slots[ahead], number],
                arrived.at[slots[ahead]],
            ).start()

    def wait(slot: Any) -> None:
        # All copies into a buffer share a semaphore, so wait for the bytes of the whole buffer.
        whole = windows.at[slot]
        pltpu.make_async_copy(whole, whole, arrived.at[slot]).wait()

    @pl.when(step.begins)
    def _() -> None:
        for ahead in range(_SLOTS - 1):
            bring(ahead)

    # This has no condition, because a condition would separate the copies from the computation. The
    # last steps copy windows that nobody reads.
    bring(_SLOTS - 1)
    wait(slots[0])
    compute(windows.at[slots[0]])

    @pl.when(step.ends)
    def _() -> None:
        for slot in slots[1:]:
            wait(slot)


def _placed(array: jax.Array, spec: pl.BlockSpec) -> jax.Array:
    """Constrain the array to the memory space of ``spec``, if the spec has one."""
    if spec.memory_space is None:
        return array
    # The spec does not suffice. XLA may put an array into vector memory if it fits, even into the
    # kernel's own part, and a copy from there is a loop of loads and stores.
    return pltpu.with_memory_space_constraint(array, spec.memory_space)
