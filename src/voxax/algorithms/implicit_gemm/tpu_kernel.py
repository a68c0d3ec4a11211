"""The Pallas kernels of ``implicit_gemm`` on TPUs: rows are selected by products with 0 and 1.

A step of the grid is one *visit*: a tile of output rows, and of every column of taps one window of
input rows, which the pipeline brings from HBM while the step before computes. For each tap, a
matrix of ones where "this output row's neighbour is that row of the window" and zeros elsewhere
picks the rows on the matrix unit, exactly: no row is copied alone, and the table of neighbours
stays in vector memory. The picked rows meet the tap's weight (forward, dgrad) or the tile's
cotangent (wgrad). Tiles whose neighbours lie further apart are visited again, for the next window
of each column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.geometry.windows import WINDOW_ALIGNMENT, WINDOW_TILE, Columns


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The static side of a call.

    Attributes:
      columns: taps of each column.
      window: rows of a window.
      parts: ``x`` is the sum of so many bfloat16 numbers, side by side in its channels.
      vmem_bytes: what the compiler may use.
      interpret: run as plain JAX, on any platform.
    """

    columns: Columns
    window: int
    parts: int
    vmem_bytes: int
    interpret: bool = False


@dataclasses.dataclass(frozen=True)
class Visits:
    """What the scalar unit knows before a step starts: ``int32``, one-dimensional.

    Attributes:
      tiles: ``[stripes * most]``, the tile of each visit, stripe after stripe; a tile's visits
        follow each other.
      first: ``[tiles]``, the place of a tile's first visit in its stripe.
      starts, lengths: ``[tiles * columns]``, see :func:`voxax.geometry.windows.find_windows`.
      totals: ``[stripes]``, visits of each stripe.
    """

    tiles: jax.Array
    first: jax.Array
    starts: jax.Array
    lengths: jax.Array
    totals: jax.Array


def product(kernel: Kernel, visits: Visits, table: Any, x: Any, w: Any, dtype: Any) -> jax.Array:
    """``y[m] = sum_k x[table[k, m]] @ w[k]``; rows of tiles without a visit are undefined.

    Args:
      kernel, visits: see there.
      table: ``int32[K', tiles * WINDOW_TILE]``, input row or -1; K' is a multiple of 8.
      x: ``bfloat16[N, parts * C_in]``, finite, with a window of rows to spare behind the last.
      w: ``[K, C_in, C_out]``; channels are multiples of 128.
      dtype: of the result.
    """
    channels = w.shape[2]

    def body(step: _Step, table_ref: Any, windows: Any, w_ref: Any, out: Any, total: Any) -> None:
        @pl.when(step.live & (step.turn == 0))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        def add(tap: int, rows: jax.Array) -> None:
            total[...] += _dot(rows, w_ref[tap], 1, 0)

        step.each_tap(kernel, table_ref, windows, w_ref.dtype, add)

        @pl.when(step.live)
        def _() -> None:
            out[...] = total[...].astype(out.dtype)

    # One buffer: its block never changes.
    w_spec = pl.BlockSpec(w.shape, lambda *_: (0, 0, 0), pipeline_mode=pl.Buffered(1))
    return _call(
        kernel,
        visits,
        body,
        table,
        x,
        (w, w_spec),
        _compat.shape_like((table.shape[1], channels), dtype, x),
        pl.BlockSpec((WINDOW_TILE, channels), lambda *place: (_Step(kernel, *place).tile, 0)),
        [pltpu.VMEM((WINDOW_TILE, channels), jnp.float32)],
    )


def weight_product(
    kernel: Kernel, visits: Visits, table: Any, x: Any, dy: Any, taps: int
) -> jax.Array:
    """``dw[k] = sum_m x[table[k, m]]^T dy[m]``: ``float32[stripes, K, C_in, C_out]``, to be summed.

    Args: those of :func:`product`; ``dy [tiles * WINDOW_TILE, C_out]`` is finite.
    """
    shape = (visits.totals.shape[0], taps, x.shape[1] // kernel.parts, dy.shape[1])

    def body(step: _Step, table_ref: Any, windows: Any, dy_ref: Any, out: Any) -> None:
        @pl.when(step.place == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        def add(tap: int, rows: jax.Array) -> None:
            out[0, tap] += _dot(rows, dy_ref[...], 0, 0)

        step.each_tap(kernel, table_ref, windows, dy_ref.dtype, add)

    tile = (WINDOW_TILE, dy.shape[1])
    return _call(
        kernel,
        visits,
        body,
        table,
        x,
        (dy, pl.BlockSpec(tile, lambda *place: (_Step(kernel, *place).tile, 0))),
        _compat.shape_like(shape, jnp.float32, x),
        pl.BlockSpec((1, *shape[1:]), lambda stripe, *_: (stripe, 0, 0, 0)),
        [],
    )


class _Step:
    """One step of the grid, from its indices and the scalars (those of ``Visits``, as refs).

    Attributes:
      place: of the visit in its stripe.
      live: whether there is such a visit; a stripe with fewer than another repeats its last.
      tile: whose visit it is.
      turn: how often the tile was visited before.
    """

    def __init__(
        self, kernel: Kernel, stripe: Any, place: Any,
        tiles: Any, first: Any, starts: Any, lengths: Any, totals: Any,
    ) -> None:  # fmt: skip
        self.place, self.live = place, place < totals[stripe]
        most = tiles.shape[0] // totals.shape[0]
        last = jnp.maximum(jnp.minimum(place, totals[stripe] - 1), 0)
        self.tile = tiles[stripe * most + last]
        self.turn = last - first[self.tile]
        self._kernel, self._starts, self._lengths = kernel, starts, lengths

    def start(self, column: int) -> jax.Array:
        """First input row of a column's window; a multiple of the alignment."""
        return self._starts[self._at(column)] + self.turn * self._kernel.window

    def fetched(self, column: int) -> jax.Array:
        """The same, or the column's last window again where it has no more: it is not copied."""
        windows = pl.cdiv(self._lengths[self._at(column)], self._kernel.window)
        turn = jnp.minimum(self.turn, jnp.maximum(windows - 1, 0))
        begin = self._starts[self._at(column)] + turn * self._kernel.window
        return pl.multiple_of(begin, WINDOW_ALIGNMENT)

    def each_tap(
        self,
        kernel: Kernel,
        table: Any,
        windows: Any,
        dtype: Any,
        use: Callable[[int, jax.Array], None],
    ) -> None:
        """``use(tap, rows [WINDOW_TILE, C_in])`` for the taps of columns that have this window."""
        places = jax.lax.broadcasted_iota(jnp.int32, (WINDOW_TILE, kernel.window), 1)
        for column, taps in enumerate(kernel.columns):

            @pl.when(
                self.live & (self._lengths[self._at(column)] > self.turn * self._kernel.window)
            )
            def _(column: int = column, taps: tuple[int, ...] = taps) -> None:
                wanted = jnp.transpose(table[...] - self.start(column))
                for tap in taps:
                    chosen = wanted[:, tap : tap + 1] == places
                    ones = jnp.where(chosen, jnp.float32(1), jnp.float32(0)).astype(jnp.bfloat16)
                    rows = _dot(ones, windows[column][...], 1, 0)
                    use(tap, _joined(rows, kernel.parts).astype(dtype))

    def _at(self, column: int) -> Any:
        return self.tile * len(self._kernel.columns) + column


def _joined(rows: jax.Array, parts: int) -> jax.Array:
    """The sum of the parts, largest first: exact, since each sum is a shorter form of the last."""
    channels = rows.shape[1] // parts
    total = rows[:, :channels]
    for part in range(1, parts):
        total = total + rows[:, part * channels : (part + 1) * channels]
    return total


def _dot(a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    """Contracted over these axes, in float32. float32 operands keep all their digits."""
    exact = a.dtype == jnp.float32
    return jax.lax.dot_general(
        a,
        b,
        (((a_axis,), (b_axis,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def _call(
    kernel: Kernel,
    visits: Visits,
    body: Callable[..., None],
    table: jax.Array,
    x: jax.Array,
    other: tuple[jax.Array, pl.BlockSpec],
    out: Any,
    out_spec: pl.BlockSpec,
    scratch: list[Any],
) -> jax.Array:
    """The grid over visits: windows of ``x`` by column, the table's and ``other``'s blocks."""
    scalars = tuple(getattr(visits, field.name) for field in dataclasses.fields(visits))
    stripes, columns = visits.totals.shape[0], len(kernel.columns)

    def run(*refs: Any) -> None:
        known, (table_ref, *rest) = refs[: len(scalars)], refs[len(scalars) :]
        step = _Step(kernel, pl.program_id(0), pl.program_id(1), *known)
        body(step, table_ref, rest[:columns], *rest[columns:])

    def window(column: int) -> pl.BlockSpec:
        shape = (pl.Element(kernel.window), pl.Element(x.shape[1]))
        return pl.BlockSpec(shape, lambda *place: (_Step(kernel, *place).fetched(column), 0))

    table_block = (table.shape[0], WINDOW_TILE)
    in_specs = [
        pl.BlockSpec(table_block, lambda *place: (0, _Step(kernel, *place).tile)),
        *(window(column) for column in range(columns)),
        other[1],
    ]
    # Traced: neither padding nor tiles without neighbours cost a step. One step at least, in
    # which sums are set to zero.
    steps = jnp.maximum(jnp.max(visits.totals), jnp.int32(1))
    return pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(stripes, steps),
            in_specs=in_specs,
            out_specs=out_spec,
            scratch_shapes=scratch,
        ),
        out_shape=out,
        # Stripes are independent: a device of two cores takes two at once. Visits add up.
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=kernel.vmem_bytes
        ),
        interpret=kernel.interpret,
    )(*scalars, table, *(x,) * columns, other[0])
