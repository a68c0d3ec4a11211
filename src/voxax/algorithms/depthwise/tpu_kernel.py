"""The Pallas kernels of depthwise products on TPUs: rows selected by products with 0 and 1.

As in ``implicit_gemm/tpu_kernel.py`` a step of the grid is one *visit*: a tile of output rows, and
of every column of taps one window of input rows. One product on the matrix unit selects the rows of
all taps of a column: their matrices of ones stand below each other, so the window is loaded into
the unit once. What follows is no matrix product: each channel is multiplied by its own weight
(forward, dgrad) or by the tile's cotangent (wgrad) on the vector unit, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.algorithms.implicit_gemm.tpu_kernel import TileConfig, Visits, call_over_visits
from voxax.algorithms.implicit_gemm.windows import WINDOW_ALIGNMENT, WINDOW_TILE


def product(
    config: TileConfig, visits: Visits, table: Any, x: Any, w: Any, dtype: Any
) -> jax.Array:
    """``y[m] = sum_k x[table[k, m]] * w[k]``; rows of tiles without a visit are undefined.

    Args:
      config, visits: see there.
      table: ``int32[K', tiles * WINDOW_TILE]``, input row or -1; K' is a multiple of 8.
      x: ``bfloat16[N, parts * C]``, finite, with a window of rows to spare behind the last; C is a
        multiple of 128.
      w: ``float32[K', C]``.
      dtype: of the result.
    """
    channels = w.shape[1]

    def body(step: _Step, table_ref: Any, windows: Any, w_ref: Any, out: Any, total: Any) -> None:
        @pl.when(step.live & (step.turn == 0))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        def add(tap: int, rows: jax.Array) -> None:
            total[...] += rows * w_ref[tap : tap + 1, :]

        step.each_tap(table_ref, windows, add)

        @pl.when(step.live)
        def _() -> None:
            out[...] = total[...].astype(out.dtype)

    return _call(
        config,
        visits,
        body,
        table,
        x,
        (w, pl.BlockSpec(w.shape, lambda *_: (0, 0))),
        (
            _compat.shape_like((table.shape[1], channels), dtype, x),
            pl.BlockSpec((WINDOW_TILE, channels), lambda *at: (_Step(config, *at).tile, 0)),
        ),
        [pltpu.VMEM((WINDOW_TILE, channels), jnp.float32)],
    )


def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """``dw[k] = sum_m x[table[k, m]] * dy[m]``: ``float32[K', C]``.

    Args: those of :func:`product`; ``dy float32[tiles * WINDOW_TILE, C]`` is finite.
    """
    shape = (table.shape[0], dy.shape[1])

    def body(step: _Step, table_ref: Any, windows: Any, dy_ref: Any, out: Any) -> None:
        @pl.when(step.place == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        def add(tap: int, rows: jax.Array) -> None:
            out[tap : tap + 1, :] += jnp.sum(rows * dy_ref[...], axis=0, keepdims=True)

        step.each_tap(table_ref, windows, add)

    tile = (WINDOW_TILE, dy.shape[1])
    return _call(
        config,
        visits,
        body,
        table,
        x,
        (dy, pl.BlockSpec(tile, lambda *place: (_Step(config, *place).tile, 0))),
        (_compat.shape_like(shape, jnp.float32, x), pl.BlockSpec(shape, lambda *_: (0, 0))),
        [],
    )


class _Step:
    """One step of the grid, from its index and the scalars (those of :class:`Visits`, as refs).

    Attributes:
      place: of the visit.
      live: whether there is such a visit: not where there is none at all.
      tile: whose visit it is.
      turn: how often the tile was visited before.
    """

    def __init__(
        self, config: TileConfig, place: Any,
        tiles: Any, first: Any, starts: Any, lengths: Any, total: Any,
    ) -> None:  # fmt: skip
        self.place, self.live = place, place < total[0]
        self.tile = tiles[place]
        self.turn = place - first[self.tile]
        self._config, self._starts, self._lengths = config, starts, lengths

    def fetched(self, column: int) -> jax.Array:
        """First row of a column's window, or of its last again where it has no more."""
        length, window = self._lengths[self._at(column)], self._config.window
        turn = jnp.minimum(self.turn, jnp.maximum(pl.cdiv(length, jnp.int32(window)) - 1, 0))
        begin = self._starts[self._at(column)] + turn * window
        return pl.multiple_of(begin, WINDOW_ALIGNMENT)

    def each_tap(self, table: Any, windows: Any, use: Callable[[int, jax.Array], None]) -> None:
        """``use(tap, float32 rows [WINDOW_TILE, C])`` for columns that have this window."""
        config = self._config
        places = jax.lax.broadcasted_iota(jnp.int32, (WINDOW_TILE, config.window), 1)
        for column, taps in enumerate(config.columns):
            passed = self.turn * config.window

            @pl.when(self.live & (self._lengths[self._at(column)] > passed))
            def _(column: int = column, taps: tuple[int, ...] = taps, passed: Any = passed) -> None:
                start = self._starts[self._at(column)] + passed
                wanted = jnp.transpose(table[...] - start)
                ones = [
                    jnp.where(wanted[:, tap : tap + 1] == places, jnp.float32(1), jnp.float32(0))
                    for tap in taps
                ]
                chosen = jax.lax.dot_general(
                    jnp.concatenate(ones, axis=0).astype(jnp.bfloat16),
                    windows[column][...],
                    (((1,), (0,)), ((), ())),
                    precision=jax.lax.Precision.DEFAULT,
                    preferred_element_type=jnp.float32,
                )
                for turn, tap in enumerate(taps):
                    rows = chosen[turn * WINDOW_TILE : (turn + 1) * WINDOW_TILE]
                    use(tap, _joined(rows, config.parts))

    def _at(self, column: int) -> Any:
        return self.tile * len(self._config.columns) + column


def _joined(rows: jax.Array, parts: int) -> jax.Array:
    """The sum of the parts, largest first: exact, since each sum is a shorter form of the last."""
    channels = rows.shape[1] // parts
    total = rows[:, :channels]
    for part in range(1, parts):
        total = total + rows[:, part * channels : (part + 1) * channels]
    return total


def _call(
    config: TileConfig,
    visits: Visits,
    body: Callable[..., None],
    table: jax.Array,
    x: jax.Array,
    other: tuple[jax.Array, pl.BlockSpec],
    out: tuple[Any, pl.BlockSpec],
    scratch: list[Any],
) -> jax.Array:
    """The grid over visits: windows of ``x`` by column, the table's and ``other``'s blocks."""
    number, columns = len(visits.scalars), len(config.columns)

    def run(*refs: Any) -> None:
        known, (table_ref, *rest) = refs[:number], refs[number:]
        body(_Step(config, pl.program_id(0), *known), table_ref, rest[:columns], *rest[columns:])

    def window(column: int) -> pl.BlockSpec:
        shape = (pl.Element(config.window), pl.Element(x.shape[1]))
        return pl.BlockSpec(shape, lambda *place: (_Step(config, *place).fetched(column), 0))

    tile = pl.BlockSpec((table.shape[0], WINDOW_TILE), lambda *at: (0, _Step(config, *at).tile))
    return call_over_visits(
        run,
        config,
        visits,
        # Traced: neither padding nor tiles without neighbors cost a step. One step at least, in
        # which sums are set to zero.
        (jnp.maximum(visits.bounds[0], jnp.int32(1)),),
        [(table, tile), *((x, window(column)) for column in range(columns)), other],
        out,
        scratch,
        dimension_semantics=("arbitrary",),
    )
