"""The Pallas kernels of ``implicit_gemm`` on TPUs: rows are selected within registers.

A step of the grid is one *visit*: some tiles of output rows, and of each tile and column of taps
one window of input rows. Several tiles, since the last results of one alone would be waited for.
All input rows are in vector memory, or where they do not fit windows are copied from HBM two steps
ahead. A step selects the rows of its visit, and multiplies those that the step before selected:
neither waits for the other, so the matrix unit is at work while rows are selected and results come
back. Everything is transposed, channels by rows, as XLA likes to keep arrays of few channels. Rows
of a window stand in the lanes of registers, and one instruction permutes the lanes of a register:
lane ``m`` of the result is the neighbor of output row ``m``. It moves 32 bits, which are two
channels of bfloat16. A window is several registers long, so each is permuted, and a comparison says
whose result counts. The selected rows of all taps stand below each other, ``[K * C_in, rows]``, and
meet all the weights (forward, dgrad) or the cotangent (wgrad) in one product. Tiles whose neighbors
lie further apart are visited again, for the next window of each column.

What is no neighbor is not multiplied: NaN in another row of a window reaches nothing.
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

# Sums of so many products of two 8-bit integers are exact in float32: 2^14 * 2^10 = 2^24.
_EXACT_TERMS = 1024
# Places of windows in vector memory: one is read, two arrive. A step may be shorter than a copy
# takes, about a microsecond.
_SLOTS = 3


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The static side of a call of a window kernel, dense or depthwise.

    Attributes:
      columns: taps of each column.
      window: rows of a window, a multiple of ``WINDOW_TILE``.
      parts: bfloat16 numbers whose sum each operand is: 3 for all digits of float32; or 1, and
        selected rows are kept as they are.
      resident: whether all input rows are in vector memory.
      tiles: tiles of ``WINDOW_TILE`` rows that a step takes together, each with windows of its own.
      vmem_bytes: memory that the compiler may use beside them.
      interpret: run as plain JAX, on any platform. Or Pallas' parameters of its TPU interpreter.
      total: dtype that sums are kept in: float32, or int32 for operands that hold integers of
        8 bits.
      result: dtype that rows of results are written in.
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
        """K."""
        return sum(map(len, self.columns))

    @property
    def rows(self) -> int:
        """Output rows of a step."""
        return self.tiles * WINDOW_TILE

    @property
    def tile_lanes(self) -> list[slice]:
        """The lanes of each tile of a step."""
        return [slice(at, at + WINDOW_TILE) for at in range(0, self.rows, WINDOW_TILE)]

    @property
    def windows(self) -> int:
        """Windows of a step."""
        return self.tiles * len(self.columns)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visits:
    """The scalars that are known before a step starts: ``int32``, one-dimensional.

    Attributes:
      groups: ``[most]``, the group of tiles of each visit; a group's visits follow each other.
      first: ``[groups]``, the place of a group's first visit.
      starts: ``[groups * windows]``, first input row of the first window of each tile and column;
        not negative, and a multiple of ``WINDOW_ALIGNMENT``.
      lengths: ``[groups * windows]``, rows from there to the last neighbor.
      bounds: ``[stripes + 1]``, the place where each stripe's visits begin, and where all end.
        No group has visits in two stripes.
    """

    groups: jax.Array
    first: jax.Array
    starts: jax.Array
    lengths: jax.Array
    bounds: jax.Array

    @property
    def scalars(self) -> tuple[jax.Array, ...]:
        """All of them, in this order."""
        return self.groups, self.first, self.starts, self.lengths, self.bounds


# Jitted, so that layers of the same sizes are traced and translated for the chip once.
@functools.partial(jax.jit, static_argnums=0)
def product(config: TileConfig, visits: Visits, table: Any, x: Any, w: Any) -> jax.Array:
    """``y[:, m] = sum_k w[k]^T x[:, table[k, m]]``: ``[C_out, M]``.

    Tiles without a visit are undefined.

    Args:
      config, visits: see there.
      table: ``int32[K, M]``, input row or -1.
      x: ``int32[C_in / 2, N]`` whose words are two channels of bfloat16, that of the even number
        below; or ``float32[C_in, N]`` for more than one part; see ``windows.in_windows``.
      w: ``bfloat16[parts * C_out, K * C_in]``, part after part; channels are multiples of 16.
    """
    multiply = functools.partial(_times_weights, config)
    return call_of_rows(config, visits, multiply, table, x, w, w.shape[0] // config.parts)


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """``dw[k] = sum_m x[:, table[k, m]] dy[:, m]^T``: ``[stripes, C_out, K * C_in]``, to be summed.

    Args: those of :func:`product`; ``dy`` is ``[C_out, M]``, bfloat16 or float32 as ``x``.
    """
    shape = dy.shape[0], config.taps * channels_of(x)
    return call_of_weights(
        config, visits, functools.partial(_add_weights, config), table, x, dy, shape
    )


@functools.partial(jax.jit, static_argnums=0)
def gradients(
    config: TileConfig, visits: Visits, table: Any, dy: Any, w: Any, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """dgrad and wgrad with one selection: both read the rows ``dy[:, table[k, n]]``.

    Returns:
      ``dx[:, n] = sum_k w[k]^T dy[:, table[k, n]]``, ``[C_in, N]``, and
      ``dw[k] = sum_n dy[:, table[k, n]] x[:, n]^T``, ``[stripes, C_in, K * C_out]``, to be summed.

    Args: those of :func:`product` for dgrad; ``x`` is ``[C_in, N]``, bfloat16 or float32 as ``dy``.
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
    """What the selected rows add to their tile, ``[C_out, config.rows]``."""
    channels, terms = w_ref.shape[0] // config.parts, w_ref.shape[1]
    y = jnp.zeros((channels, config.rows), config.total)
    # The smallest terms first. The products of two small parts are below float32's digits.
    for part in reversed(range(config.parts)):
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
    """Add to ``out[0]`` the products of a tile of the other operand with the selected rows."""
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
    """The call of a product whose result has a tile for each tile of the table: ``[channels, M]``.

    Args: those of :func:`product`; ``multiply(picked, w_ref)`` returns what a visit adds to its
      tile, ``[C_out, config.rows]``.
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
    """The call of a product whose result is summed over all visits: ``[stripes, *shape]``.

    Args: those of :func:`weight_product`; ``add(picked, dy, out)`` adds a visit's part, where
      ``dy`` is ``[C_out, config.rows]``, zero in rows without neighbors.
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
    """The calls of rows and of weights in one.

    Args: those of :func:`gradients`, and of :func:`call_of_rows` and :func:`call_of_weights`.
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
    """Add a visit's part to its tile, which the last visit leaves in ``out``."""
    y = y + jnp.where(step.turn == 0, jnp.zeros_like(y), total[...])
    total[...] = y
    out[...] = y.astype(out.dtype)


def _with_neighbors(tile: Any, last: Any) -> jax.Array:
    """A tile's rows, zero where there is no neighbor: padding may be NaN, and 0 times it is NaN."""
    rows = tile[...]
    return jnp.where(last[...] >= 0, rows, jnp.zeros_like(rows))


@dataclasses.dataclass(frozen=True)
class _Result:
    """A result of a call.

    Attributes:
      shape: of the whole.
      spec: its blocks, from ``_call``'s function of a place in the grid to the step.
      summed: whether it is a sum over all visits of a stripe, from zero.
    """

    shape: Any
    spec: Callable[[Callable[..., Step]], pl.BlockSpec]
    summed: bool


def _whole(w: jax.Array) -> tuple[jax.Array, pl.BlockSpec]:
    """An operand that every step reads: one buffer, since its block never changes."""
    return w, pl.BlockSpec(w.shape, lambda *_: (0, 0), pipeline_mode=pl.Buffered(1))


def _tiles(config: TileConfig, visits: Visits, table: jax.Array, channels: int) -> _Result:
    """The result with a tile for each tile of the table, ``[channels, M and more]``."""
    rows, stripes = table.shape[1], visits.bounds.shape[0] - 1
    if config.interpret:  # JAX 0.12's interpreter takes no part of a block of shared memory.
        rows += -rows % config.rows
    if stripes > 1:
        rows = (visits.first.shape[0] + 1) * config.rows
    return _Result(
        _compat.shape_like((channels, rows), config.result, table),
        # Of several stripes one without visits writes behind: its place is not another's.
        lambda step: pl.BlockSpec(
            (channels, config.rows), lambda *place: (0, step(*place).written)
        ),
        summed=False,
    )


def _sums(config: TileConfig, visits: Visits, shape: tuple[int, int], like: jax.Array) -> _Result:
    """The result that is summed over all visits, ``[stripes, *shape]``."""
    whole = (visits.bounds.shape[0] - 1, *shape)
    return _Result(
        _compat.shape_like(whole, config.total, like),
        lambda step: pl.BlockSpec((1, *shape), lambda stripe, *_: (stripe, 0, 0)),
        summed=True,
    )


class Step:
    """One step of the grid, from its indices and the scalars (those of ``Visits``, as refs).

    Rows are selected for the visit of the step's number, and multiplied for the one before. So a
    stripe has one step more than visits; what its first step multiplies is thrown away.

    Attributes:
      number: of the step, in its stripe.
      begins, ends: whether it is its stripe's first, or its last that does anything.
      live: whether it does anything; a stripe may have fewer visits than another, or none.
      group: whose rows are selected.
      before: whose rows are multiplied.
      written: the group whose results are written.
      turn: how often ``before`` was visited before that.
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
        """A place that holds a visit."""
        return jnp.maximum(jnp.minimum(place, self._end - 1), 0)

    def windows(self, ahead: int = 0) -> list[Any]:
        """First rows of the windows of this visit, or of one after; behind all rows if none."""
        config, (groups, first, starts, lengths) = self._config, self._scalars
        wanted, none = self._place + ahead, jnp.iinfo(jnp.int32).max
        place = self._known(wanted)
        group = groups[place]
        passed = (place - first[group]) * config.window
        # Behind the last visit there are none.
        passed = jnp.where(wanted < self._end, passed, none)
        found = []
        for window in range(config.windows):
            at = group * config.windows + window
            found.append(jnp.where(lengths[at] > passed, starts[at] + passed, none))
        return found


def _neighbors(config: TileConfig, table: Any, rows: int, group: Any) -> jax.Array:
    """A group's part of the table; the last one may exceed its rows, and holds anything there."""
    found = table[...]
    if rows % config.rows == 0:
        return found
    row = group * config.rows + jax.lax.broadcasted_iota(jnp.int32, found.shape, 1)
    return jnp.where(row < rows, found, jnp.int32(-1))


def _pick(
    config: TileConfig, starts: list[Any], rows: int, table: jax.Array, windows: Any, picked: Any
) -> None:
    """Every tap's rows: ``picked[part, tap * words + word, row]``, zero where there is none.

    ``starts``: where each window begins. ``windows``: those, or all ``rows``.
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
        for tap in config.columns[column]:
            row = table[tap : tap + 1, lanes]
            found = _rows_at(blocks, jnp.where(row >= start, row - begin, jnp.int32(-1)))
            parts = [found]
            if config.parts > 1:
                parts = [pltpu.bitcast(part, jnp.int32) for part in _in_parts(found, config.parts)]
            for part, values in enumerate(parts):
                picked[part, tap * words : (tap + 1) * words, lanes] = values


def _at_hand(config: TileConfig, start: Any, rows: int) -> tuple[Any, Any]:
    """First row of what is read for a window that begins at ``start``, and the place of that row.

    The place is a multiple of ``WINDOW_TILE``: rows stand there twice, see ``windows.in_windows``.
    """
    begin = jnp.minimum(start, rows - config.window)
    odd = jnp.bitwise_and(begin, jnp.int32(WINDOW_ALIGNMENT)) != 0
    return begin, jnp.where(odd, begin + (rows + WINDOW_ALIGNMENT), begin)


def _rows_at(blocks: list[jax.Array], place: jax.Array) -> jax.Array:
    """``[words, WINDOW_TILE]``: of each lane the row at a place of the window, zero where none."""
    shape = blocks[0].shape
    lane = jnp.broadcast_to(jnp.bitwise_and(place, jnp.int32(WINDOW_TILE - 1)), shape)
    block = jnp.broadcast_to(jax.lax.shift_right_arithmetic(place, jnp.int32(7)), shape)
    found = jnp.zeros(shape, blocks[0].dtype)
    for number, values in enumerate(blocks):
        moved = jnp.take_along_axis(values, lane, axis=1, mode="promise_in_bounds")
        found = jnp.where(block == number, moved, found)
    return found


def channels_of(x: jax.Array) -> int:
    """C_in, of words of two channels or of one."""
    return x.shape[0] * (2 if x.dtype == jnp.int32 else 1)


def _as_bfloat16(words: jax.Array) -> jax.Array:
    """Channels below each other, from words of two."""
    return pltpu.bitcast(words, jnp.bfloat16)


def _in_parts(x: jax.Array, parts: int) -> list[jax.Array]:
    """bfloat16 numbers whose sum is ``x``, the largest first; each has the next 8 of its digits."""
    if parts == 1:
        return [x]
    found = []
    for _ in range(parts):
        # Cut, not rounded: a compiler may take a conversion there and back for nothing.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(1 << 16))
        head = jax.lax.bitcast_convert_type(bits, jnp.float32)
        found.append(head.astype(jnp.bfloat16))
        x = x - head
    return found


def _pieces(config: TileConfig, terms: int) -> list[tuple[int, int]]:
    """``(begin, size)`` of the sums that one product may take: all, but of integers few."""
    size = _EXACT_TERMS if config.total == jnp.int32 else terms
    return [(begin, min(size, terms - begin)) for begin in range(0, terms, size)]


def _dot(a: jax.Array, b: jax.Array, b_axis: int) -> jax.Array:
    """bfloat16 operands contracted over the first one's last axis, in float32."""
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
    """The grid over visits: windows of ``x`` by column, the blocks of the table and of ``others``.

    ``body(step, picked, others, results, *scratch)`` computes with the rows of the step before. A
    spec of None: by the groups of these rows. Of sums over visits the first scratch is ``int32[1,
    config.rows]``: the last neighbor of each of these rows, or -1.
    """
    scalars, number = visits.scalars, len(visits.scalars)
    stripes = visits.bounds.shape[0] - 1
    words, rows = x.shape[0], rows_of(x)
    # Parts are bfloat16 too, in words of two.
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

        # After the step's products: what the first multiplies is no visit's.
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
    # Traced: neither padding nor tiles without neighbors cost a step. One step more than visits:
    # the last are multiplied in it; and sums are set to zero in the first, visits or not.
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
            # Stripes are independent: a device of two cores takes two at once. Visits add up.
            dimension_semantics=("parallel", "arbitrary"),
            # No window leaves its array, see _at_hand.
            disable_bounds_checks=not bounds_checks(),
        ),
        interpret=config.interpret,
    )
    arrays = [array for array, _ in operands]
    if not config.interpret:  # Plain JAX has one memory.
        arrays = [_placed(*operand) for operand in operands]
    # The chip has no integers of 64 bits, which a Python number in an index map would be.
    with jax.enable_x64(False):
        return call(*scalars, *arrays)


def _with_copies(
    config: TileConfig, step: Step, rows: int, refs: tuple[Any, ...], compute: Callable[..., None]
) -> None:
    """Compute with windows that were copied in the steps before, and start to copy later ones.

    ``refs``: all rows, the places of windows, and the semaphores of these places.
    """
    x, windows, arrived = refs
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
        # For as many bytes as all copies of a slot bring: they share a semaphore.
        whole = windows.at[slot]
        pltpu.make_async_copy(whole, whole, arrived.at[slot]).wait()

    @pl.when(step.begins)
    def _() -> None:
        for ahead in range(_SLOTS - 1):
            bring(ahead)

    # Without a condition, which would part this from the computation; what the last steps copy
    # nothing reads.
    bring(_SLOTS - 1)
    wait(slots[0])
    compute(windows.at[slots[0]])

    @pl.when(step.ends)
    def _() -> None:
        for slot in slots[1:]:
            wait(slot)


def _placed(array: jax.Array, spec: pl.BlockSpec) -> jax.Array:
    """Keep an operand that is no pipeline's in the memory where its block is.

    The block's memory alone does not. XLA may put an array that fits into vector memory, and a copy
    from there is a loop of loads and stores; or it may bring one there in the kernel's own part.
    """
    if spec.memory_space is None:
        return array
    return pltpu.with_memory_space_constraint(array, spec.memory_space)
