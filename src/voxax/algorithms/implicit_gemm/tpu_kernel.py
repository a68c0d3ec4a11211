"""The Pallas kernels of ``implicit_gemm`` on TPUs: rows are selected by products with 0 and 1.

A step of the grid is one *visit*: a tile of output rows, and of every column of taps one window of
input rows, copied from HBM while the step before computes. It selects the rows of its visit, and
multiplies those that the step before selected: neither waits for the other, so the matrix unit is
at work while rows are compared and results come back. Everything is transposed, channels by
rows: for each tap a matrix of ones where "that row of the window is this output row's neighbor"
and zeros elsewhere is the *stationary* operand of the matrix unit, and the window's channels pass
through it. That picks rows exactly; no row is copied alone. The picked rows of all taps stand
below each other, ``[K * C_in, WINDOW_TILE]``, and meet all the weights (forward, dgrad) or the
tile's cotangent (wgrad) in one product. Tiles whose neighbors lie further apart are visited
again, for the next window of each column.

Why transposed: the ones are built by comparing a row of the table with the index of the row in a
register, no value crosses lanes; 64 channels fill what passes through the matrix unit, where as
lanes they would leave half of it empty.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.algorithms.implicit_gemm.windows import WINDOW_ALIGNMENT, WINDOW_TILE, Columns

# Sums of so many products of two 8-bit integers are exact in float32: 2^14 * 2^10 = 2^24.
_EXACT_TERMS = 1024


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The static side of a call of a window kernel, dense or depthwise.

    Attributes:
      columns: taps of each column.
      window: rows of a window.
      parts: bfloat16 numbers whose sum each operand is: 1, or 3 for all digits of float32.
      vmem_bytes: memory that the compiler may use.
      interpret: run as plain JAX, on any platform. Or Pallas' parameters of its TPU interpreter.
      packed: rows that stand side by side in one row of ``x``: 1 or 2.
      total: dtype that sums are kept in: float32, or int32 for operands that hold integers of
        8 bits.
    """

    columns: Columns
    window: int
    parts: int
    vmem_bytes: int
    interpret: Any = False
    packed: int = 1
    total: Any = jnp.float32

    @property
    def taps(self) -> int:
        """K."""
        return sum(map(len, self.columns))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Visits:
    """The scalars that are known before a step starts: ``int32``, one-dimensional.

    Attributes:
      tiles: ``[most]``, the tile of each visit; a tile's visits follow each other.
      first: ``[tiles]``, the place of a tile's first visit.
      starts: ``[tiles * columns]``, first input row of a tile's first window; not negative, and
        a multiple of ``packed * WINDOW_ALIGNMENT``.
      lengths: ``[tiles * columns]``, rows from there to the last neighbor.
      bounds: ``[stripes + 1]``, the place where each stripe's visits begin, and where all end.
        No tile has visits in two stripes. Of depthwise products, which have no stripes, ``[1]``:
        the number of visits.
    """

    tiles: jax.Array
    first: jax.Array
    starts: jax.Array
    lengths: jax.Array
    bounds: jax.Array

    @property
    def scalars(self) -> tuple[jax.Array, ...]:
        """All of them, in this order."""
        return self.tiles, self.first, self.starts, self.lengths, self.bounds


def call_over_visits(
    run: Callable[..., None],
    config: TileConfig,
    visits: Visits,
    grid: tuple[Any, ...],
    operands: Sequence[tuple[jax.Array, pl.BlockSpec]],
    out: tuple[Any, pl.BlockSpec],
    scratch: list[Any],
    aliases: dict[int, int] | None = None,
    **parameters: Any,
) -> jax.Array:
    """A call that knows the visits before its steps start, with its arrays and their blocks.

    ``parameters`` are the compiler's; ``run`` gets the scalars, operands, result and ``scratch``.
    """
    scalars, arrays = visits.scalars, [array for array, _ in operands]
    if not config.interpret:  # Plain JAX has one memory.
        arrays = [_placed(*operand) for operand in operands]
    call = pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=grid,
            in_specs=[spec for _, spec in operands],
            out_specs=out[1],
            scratch_shapes=scratch,
        ),
        out_shape=out[0],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=config.vmem_bytes, **parameters),
        input_output_aliases=aliases or {},
        interpret=config.interpret,
    )
    # The chip has no integers of 64 bits, which a Python number in an index map would be.
    with jax.enable_x64(False):
        return call(*scalars, *arrays)


def _placed(array: jax.Array, spec: pl.BlockSpec) -> jax.Array:
    """Keep an operand in HBM whose block is there.

    The block's memory alone does not: XLA may put an array that fits into vector memory, and a copy
    from there is a loop of loads and stores.
    """
    if spec.memory_space is not pltpu.HBM:
        return array
    return pltpu.with_memory_space_constraint(array, pltpu.HBM)


# Jitted, so that layers of the same sizes are traced and translated for the chip once.
@functools.partial(jax.jit, static_argnums=0)
def product(
    config: TileConfig, visits: Visits, table: Any, x: Any, w: Any, unvisited: jax.Array
) -> jax.Array:
    """``y[m] = sum_k x[table[k, m]] @ w[k]``: ``[tiles + 1, WINDOW_TILE, C_out]``.

    The last tile is undefined.

    Args:
      config, visits: see there.
      table: ``int32[K', tiles * WINDOW_TILE]``, input row or -1; K' is a multiple of 8.
      x: ``[N / packed, packed * C_in]``, bfloat16, or float32 for more than one part; finite. The
        last window of rows is zero, and no neighbor.
      w: ``bfloat16[parts * C_out, K * C_in]``, part after part; channels are multiples of 64.
      unvisited: the result, as it is in tiles that have no visit. Its memory becomes the result's:
        no pass over all rows has to follow that looks for such tiles.
    """
    channels, c_in = w.shape[0] // config.parts, x.shape[1] // config.packed

    def body(step: _Step, picked: Any, w_ref: Any, out: Any, total: Any) -> None:
        y = jnp.zeros((channels, WINDOW_TILE), config.total)
        # The smallest terms first. The products of two small parts are below float32's digits.
        for part in reversed(range(config.parts)):
            rows = config.parts - part
            for begin, size in _pieces(config, config.taps * c_in):
                terms = _dot(
                    w_ref[: rows * channels, begin : begin + size],
                    picked[part, begin : begin + size],
                    1,
                    0,
                ).astype(config.total)
                for row in reversed(range(rows)):
                    y = y + terms[row * channels : (row + 1) * channels]
        y = y + jnp.where(step.turn == 0, jnp.zeros_like(y), total[...])
        total[...] = y
        out[...] = jnp.transpose(y).astype(out.dtype)

    return _call(
        config,
        visits,
        body,
        table,
        x,
        # One buffer: its block never changes.
        (w, pl.BlockSpec(w.shape, lambda *_: (0, 0), pipeline_mode=pl.Buffered(1))),
        _compat.shape_like(unvisited.shape, unvisited.dtype, x),
        # A stripe without visits writes behind the last tile: its place is not another's.
        lambda step: pl.BlockSpec(
            (None, WINDOW_TILE, channels), lambda *place: (step(*place).written, 0, 0)
        ),
        None,
        [pltpu.VMEM((channels, WINDOW_TILE), config.total)],
        unvisited,
    )


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """``dw[k] = sum_m x[table[k, m]]^T dy[m]``: ``[stripes, C_out, K * C_in]``, to be summed.

    Args: those of :func:`product`; ``dy`` is ``[tiles * WINDOW_TILE, C_out]`` of the dtype of
      ``x``, and finite.
    """
    c_in = x.shape[1] // config.packed
    shape = (visits.bounds.shape[0] - 1, dy.shape[1], config.taps * c_in)

    def clear(out: Any) -> None:
        out[...] = jnp.zeros_like(out)

    def body(step: _Step, picked: Any, dy_ref: Any, out: Any) -> None:
        del step
        channels = dy.shape[1]
        cotangents = _in_parts(jnp.transpose(dy_ref[...]), config.parts)
        for part in reversed(range(config.parts)):
            rows = config.parts - part
            terms = _dot(
                jnp.concatenate(cotangents[:rows], axis=0), picked[part], 1, 1
            ).astype(config.total)  # fmt: skip
            for row in reversed(range(rows)):
                out[0] += terms[row * channels : (row + 1) * channels]

    return _call(
        config,
        visits,
        body,
        table,
        x,
        (dy, None),
        _compat.shape_like(shape, config.total, x),
        lambda step: pl.BlockSpec((1, *shape[1:]), lambda stripe, *_: (stripe, 0, 0)),
        clear,
        [],
    )


class _Step:
    """One step of the grid, from its indices and the scalars (those of ``Visits``, as refs).

    Rows are selected for the visit of the step's number, and multiplied for the one before. So a
    stripe has one step more than visits; what its first step multiplies is thrown away.

    Attributes:
      begins, ends: whether it is its stripe's first, or its last that does anything.
      live: whether it does anything; a stripe may have fewer visits than another, or none.
      tile: whose rows are selected.
      before: whose rows are multiplied.
      written: the tile whose results are written.
      turn: how often ``before`` was visited before that.
    """

    def __init__(
        self, config: TileConfig, stripe: Any, step: Any,
        tiles: Any, first: Any, starts: Any, lengths: Any, bounds: Any,
    ) -> None:  # fmt: skip
        begin, end = bounds[stripe], bounds[stripe + 1]
        self._place, self._end = begin + step, end
        self.begins, self.ends = step == 0, begin + step == end
        self.live = jnp.logical_and(begin < end, begin + step <= end)
        self.tile = tiles[self._known(begin + step)]
        before = self._known(jnp.maximum(begin + step - 1, begin))
        self.before = tiles[before]
        self.written = jnp.where(begin < end, self.before, first.shape[0])
        self.turn = before - first[self.before]
        self._config, self._scalars = config, (tiles, first, starts, lengths)

    def _known(self, place: Any) -> Any:
        """A place that holds a visit."""
        return jnp.maximum(jnp.minimum(place, self._end - 1), 0)

    def windows(self, behind: int, ahead: int = 0) -> list[Any]:
        """First rows of the windows of this visit, or of the one after; ``behind`` if none.

        ``behind``: where the rows begin that are zero. No window starts after it, whatever the
        scalars say: the copies need no further check.
        """
        config, (tiles, first, starts, lengths) = self._config, self._scalars
        wanted = self._place + ahead
        place = self._known(wanted)
        tile = tiles[place]
        passed = (place - first[tile]) * config.window
        # Behind the last visit every window is one of zeros.
        passed = jnp.where(wanted < self._end, passed, jnp.iinfo(jnp.int32).max)
        found = []
        for column in range(len(config.columns)):
            at = tile * len(config.columns) + column
            start = jnp.where(lengths[at] > passed, starts[at] + passed, behind)
            found.append(jnp.minimum(start, behind))
        return found


def _pick(config: TileConfig, starts: list[Any], table: Any, windows: Any, picked: Any) -> None:
    """Every tap's rows: ``picked[part, tap * C_in + channel, row]``, zero where there is none."""
    places = _places(config)
    for column in range(len(config.columns)):
        _pick_column(config, column, starts[column], table, windows[column], places, picked)


def _places(config: TileConfig) -> Any:
    """The number that each row of a transposed window had: ``[window, WINDOW_TILE]``.

    Rows that share one come apart as the first of each, then the second of each.
    """
    places = jax.lax.broadcasted_iota(jnp.int32, (config.window, WINDOW_TILE), 0)
    if config.packed == 1:
        return places
    half = config.window // 2
    return jnp.where(places < half, 2 * places, 2 * places - (config.window - 1))


def _pick_column(
    config: TileConfig, column: int, start: Any, table: Any, x: Any, places: Any, picked: Any
) -> None:
    """The rows of one column's taps, from its window ``x``, which begins at row ``start``."""
    c_in = picked.shape[1] // config.taps
    x = jnp.transpose(x)
    x = jnp.concatenate([x[p * c_in : (p + 1) * c_in] for p in range(config.packed)], axis=1)
    x = jnp.concatenate(_in_parts(x, config.parts), axis=0)
    for tap in config.columns[column]:
        wanted = table[pl.ds(tap, 1), :] - start
        ones = jnp.where(wanted == places, jnp.float32(1), jnp.float32(0))
        rows = _dot(x, ones.astype(jnp.bfloat16), 1, 0).astype(jnp.bfloat16)
        for part in range(config.parts):
            picked[part, pl.ds(tap * c_in, c_in), :] = rows[part * c_in : (part + 1) * c_in]


def _in_parts(x: jax.Array, parts: int) -> list[jax.Array]:
    """bfloat16 numbers whose sum is ``x``, the largest first; each has the next 8 of its digits."""
    if parts == 1:
        return [x.astype(jnp.bfloat16)]
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


def _dot(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    """bfloat16 operands contracted over these axes, in float32."""
    return jax.lax.dot_general(
        a,
        b,
        (((a_axis,), (b_axis,)), ((), ())),
        precision=jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def _call(
    config: TileConfig,
    visits: Visits,
    body: Callable[..., None],
    table: jax.Array,
    x: jax.Array,
    other: tuple[jax.Array, pl.BlockSpec | None],
    out: Any,
    out_spec: Callable[[Callable[..., _Step]], pl.BlockSpec],
    clear: Callable[[Any], None] | None,
    scratch: list[Any],
    before: jax.Array | None = None,
) -> jax.Array:
    """The grid over visits: windows of ``x`` by column, the table's and ``other``'s blocks.

    ``before``: what the result's memory holds where no step writes.
    """
    number = len(visits.scalars)
    stripes, columns = visits.bounds.shape[0] - 1, len(config.columns)
    c_in, rows = x.shape[1] // config.packed, config.window // config.packed
    behind = x.shape[0] * config.packed - config.window

    held = () if before is None else (before,)

    def step_of(stripe: Any, step: Any, *known: Any) -> _Step:
        return _Step(config, stripe, step, *known)

    def run(*refs: Any) -> None:
        known, rest = refs[:number], refs[number:]
        table_ref, x_ref, other_ref, *rest = rest
        out_ref, windows, picked, arrived, *own = rest[len(held) :]
        step = step_of(pl.program_id(0), pl.program_id(1), *known)
        slot = jax.lax.rem(pl.program_id(1), jnp.int32(2))

        def copies(starts: list[Any], slot: Any) -> list[Any]:
            found = []
            for column, start in enumerate(starts):
                if config.packed == 2:
                    start = jax.lax.shift_right_logical(start, jnp.int32(1))
                source = x_ref.at[pl.ds(pl.multiple_of(start, WINDOW_ALIGNMENT), rows), :]
                found.append(
                    pltpu.make_async_copy(source, windows.at[slot, column], arrived.at[slot])
                )
            return found

        def wait(slot: Any) -> None:
            # For as many bytes as all copies of a slot bring: they share a semaphore.
            whole = windows.at[slot]
            pltpu.make_async_copy(whole, whole, arrived.at[slot]).wait()

        @pl.when(step.live)
        def _() -> None:
            here = step.windows(behind)

            @pl.when(step.begins)
            def _() -> None:
                for copy in copies(here, slot):
                    copy.start()

            # Without a condition, which would part this from the computation; the last step's
            # copies bring zeros, which nothing reads.
            for copy in copies(step.windows(behind, ahead=1), 1 - slot):
                copy.start()
            wait(slot)
            body(step, picked, other_ref, out_ref, *own)
            _pick(config, here, table_ref, windows.at[slot], picked)

            @pl.when(step.ends)
            def _() -> None:
                wait(1 - slot)

        if clear is not None:
            pl.when(step.begins)(functools.partial(clear, out_ref))

    other_spec = other[1] or pl.BlockSpec(
        (WINDOW_TILE, other[0].shape[1]), lambda *place: (step_of(*place).before, 0)
    )
    # Traced: neither padding nor tiles without neighbors cost a step. One step more than visits:
    # the last are multiplied in it; and sums are set to zero in the first, visits or not.
    steps = jnp.max(visits.bounds[1:] - visits.bounds[:-1]) + jnp.int32(1)
    tile = pl.BlockSpec((table.shape[0], WINDOW_TILE), lambda *place: (0, step_of(*place).tile))
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return call_over_visits(
        run,
        config,
        visits,
        (stripes, steps),
        [(table, tile), (x, hbm), (other[0], other_spec), *((array, hbm) for array in held)],
        (out, out_spec(step_of)),
        [
            pltpu.VMEM((2, columns, rows, x.shape[1]), x.dtype),
            pltpu.VMEM((config.parts, config.taps * c_in, WINDOW_TILE), jnp.bfloat16),
            pltpu.SemaphoreType.DMA((2,)),
            *scratch,
        ],
        {number + 3: 0} if held else {},
        # Stripes are independent: a device of two cores takes two at once. Visits add up.
        dimension_semantics=("parallel", "arbitrary"),
        # No copy leaves its array, see _Step.windows; the checks took 260 bundles a visit.
        disable_bounds_checks=True,
    )
