"""The Pallas kernels of dynamic products on 2-D grids with W along the lanes of a register.

The arrays are ``[B * H * C, W]``. XLA stores arrays with few channels like this, so nothing is
moved before or after a kernel. The terms are those of ``blocks.py`` with the axes exchanged. A
*group* is P consecutive positions along H, which are P * C rows. A pass multiplies P * C rows that
begin at any line; another line needs no copy, only another address. The rows are shifted along W
once for all taps with the same shift.

A step of the grid is one block of lines over all of W. Lines of its window that are outside of the
grid are zeros, as are the lanes that a shift moves in.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.kernels.dynamic import tpu_kernel
from voxax.kernels.dynamic.lanes import Lanes
from voxax.kernels.dynamic.tpu_kernel import Step, Steps
from voxax.kernels.implicit_gemm.windows import CHANNELS

_COLUMNS = 1024
"""Number of columns that are multiplied at a time. A column has P positions."""


@dataclasses.dataclass(frozen=True)
class LaneConfig:
    """Static parameters of one kernel call.

    Attributes:
      lanes: the block layout. The other attributes are those of ``tpu_kernel.BlockConfig``.
    """

    lanes: Lanes
    exact: bool
    vmem_bytes: int
    stripes: int = 1
    repeats: bool = True
    all_shells: bool = False
    interpret: Any = False


@functools.partial(jax.jit, static_argnums=0)
def product(config: LaneConfig, steps: Steps, x: Any, level: Any, w: Any, like: Any) -> jax.Array:
    """Run forward or dgrad: add the products of all taps, masked by each position's kernel size.

    The grid is ``[B, H, W]``, where W is padded to whole registers.

    Args:
      config: static parameters.
      steps: the block of each step, and other scalars, as in ``tpu_kernel.product``.
      x: the source, the operand that taps read, ``[B * H * C, W]``.
      level: ``float32[B * H, 1, W]``, from :func:`~voxax.kernels.dynamic.blocks.levels_of`: of each
        source if ``lanes.masks_source``, else of each output, where H is padded to whole blocks.
      w: ``[K + 1, C_result, C]``, for K taps and a last tap of zeros; C and C_result are the
        numbers of channels of source and result.
      like: an array with the dtype of the result.

    Returns:
      ``[B * H * C_result, W]``, where H is padded to whole blocks.
    """
    lanes = config.lanes
    outside, inside = w.shape[1:]
    group = lanes.pack * outside
    out = (lanes.scenes * lanes.number * lanes.lines * outside, lanes.width)

    def body(step: Step, window: Any, level: Any, w_ref: Any, out: Any, *scratch: Any) -> None:
        columns, weights = scratch

        @pl.when(step.begins)
        def _() -> None:
            _lay_out(lanes, step.taps, w_ref, weights)

        @pl.when(step.reached == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        def multiply(part: _Part, reached: int) -> None:
            y, place = jnp.zeros((group, part.width), jnp.float32), 0
            has = None if lanes.masks_source else part.levels(level, outside)
            for number, passes in enumerate(lanes.shells[:reached]):
                taken = [part.taken(columns, number, p, inside) for p in passes]
                weight = [weights[place + turn] for turn in range(len(passes))]
                place += len(passes)
                terms = tpu_kernel.dot(
                    config, jnp.concatenate(weight, axis=1), jnp.concatenate(taken), 1, 0
                )
                if has is not None:
                    terms = jnp.where(has > number, terms, jnp.zeros_like(terms))
                y = y + terms
            out[part.rows(outside), part.across] = y.astype(out.dtype)

        _each_level(config, step, window, level, columns, 1, multiply)

    scratch = [
        _columns(lanes, inside, x.dtype),
        pltpu.VMEM((len(lanes.passes), group, lanes.pack * inside), w.dtype),
    ]
    return _call(
        config, steps, x, level, body, inside,
        # One buffer, because its block never changes.
        (w, pl.BlockSpec(w.shape, lambda *_: (0, 0, 0), pipeline_mode=pl.Buffered(1))),
        (_compat.shape_like(out, like.dtype, x), _block(lanes, outside)),
        scratch,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: LaneConfig, steps: Steps, x: Any, level: Any, dy: Any) -> jax.Array:
    """Run wgrad: for each of K taps, sum the products of cotangents and sources over positions.

    Args:
      config, steps, x, level: as in :func:`product`; the level of an output masks its cotangent.
      dy: ``[B * H * C_out, W]``, where H is padded to whole blocks.

    Returns:
      ``float32[config.stripes, K, C_out, C_in]``: each stripe has the sum over its blocks. The sum
      over stripes is left to the caller.
    """
    lanes = config.lanes
    outside = dy.shape[0] // (lanes.scenes * lanes.number * lanes.lines)
    inside = x.shape[0] // (lanes.scenes * lanes.high)
    shape = (config.stripes, steps.taps.shape[0] // lanes.pack, outside, inside)
    most = max(1, _COLUMNS // lanes.tile)
    groups = lanes.lines // lanes.pack
    joined = max(n for n in range(1, groups + 1) if groups % n == 0 and n <= most)

    def body(step: Step, window: Any, level: Any, dy_ref: Any, out: Any, *scratch: Any) -> None:
        columns, sums = scratch

        @pl.when(step.begins)
        def _() -> None:
            sums[...] = jnp.zeros_like(sums)

        def multiply(part: _Part, reached: int) -> None:
            parts = [dataclasses.replace(part, group=part.group + n) for n in range(joined)]
            rows = [_paired(dy_ref[p.rows(outside), p.across]) for p in parts]
            # Both rows of a pair belong to the same position.
            high = rows[0].shape[0] // lanes.pack
            has = [p.levels(level, high) for p in parts]
            place = 0
            for number, passes in enumerate(lanes.shells[:reached]):
                own = [
                    _single(jnp.where(h > number, r, jnp.zeros_like(r)), x.dtype)
                    for h, r in zip(has, rows, strict=True)
                ]
                own = jnp.concatenate(own, axis=1)
                for one in passes:
                    taken = [p.taken(columns, number, one, inside) for p in parts]
                    taken = jnp.concatenate(taken, axis=1)
                    sums[place] += tpu_kernel.dot(config, own, taken, 1, 1)
                    place += 1

        _each_level(config, step, window, level, columns, joined, multiply)

        @pl.when(step.ends)
        def _() -> None:
            tpu_kernel.sum_taps(lanes.pack, step.taps, sums, out)

    spec = pl.BlockSpec((None, *shape[1:]), lambda stripe, *_: (stripe, 0, 0, 0))
    sums = (len(lanes.passes), lanes.pack * outside, lanes.pack * inside)
    return _call(
        config, steps, x, level, body, inside,
        (dy, _block(lanes, outside)),
        (_compat.shape_like(shape, jnp.float32, x), lambda _: spec),
        [_columns(lanes, inside, x.dtype), pltpu.VMEM(sums, jnp.float32)],
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a block that is multiplied at once: ``width`` lanes of one group of lines.

    The lanes begin with ``first``. A group is P consecutive lines of the block, and ``group`` its
    number. A line has one index along H, and W along its lanes.
    """

    lanes: Lanes
    group: Any
    first: Any

    @property
    def width(self) -> int:
        return self.lanes.tile

    @property
    def across(self) -> Any:
        """The part's lanes, as a slice of W."""
        return pl.ds(pl.multiple_of(self.first, CHANNELS), self.width)

    def rows(self, channels: int) -> Any:
        """Return which rows of an array of the block belong to the part, as a slice.

        The array has ``channels`` rows for each line of the block, and the part has P of the lines.
        """
        return _rows(self.group * self.lanes.pack, self.lanes.pack, channels)

    def taken(self, columns: Any, number: int, one: Any, channels: int) -> jax.Array:
        """Return the source rows that one matrix product reads for this part, ``[P * C, width]``.

        Args:
          columns: reference to the shifted windows, as :func:`_shift_window` writes them.
          number: number of the pass's shell: the kernel offsets that one kernel size adds.
          one: the pass, that is, the matrix product.
          channels: C, the number of channels of a source.
        """
        lanes = self.lanes
        rows = _rows(self.group * lanes.pack + one.column, lanes.pack, channels)
        return columns[lanes.slot(number, one.line), rows, self.across]

    def levels(self, level: Any, rows: int) -> jax.Array:
        """Return the part's levels, each line repeated ``rows`` times, ``[P * rows, width]``.

        The level of a position is the number of shells within its kernel size; a shell is the taps
        that one size adds. ``level``, ``[lines, 1, W]``, has those of a block. P is the number of
        lines of the part.
        """
        pack = self.lanes.pack
        found = [level[self.group * pack + p, :, self.across] for p in range(pack)]
        return jnp.concatenate([jnp.broadcast_to(f, (rows, self.width)) for f in found])


def _rows(line: Any, lines: int, channels: int) -> Any:
    """Return the slice of ``[H * C, W]`` that has ``lines`` lines, from number ``line`` on.

    A line has one index along H and ``channels`` rows, one for each channel.
    """
    return pl.ds(pl.multiple_of(line * channels, tpu_kernel.TILE_ROWS), lines * channels)


def _each_level(
    config: LaneConfig,
    step: Step,
    window: Any,
    level: Any,
    columns: Any,
    joined: int,
    multiply: Callable[[_Part, int], None],
) -> None:
    """Write a block's shifted windows, then call ``multiply(part, reached)`` for all its parts.

    A call computes ``joined`` groups of lines, of which ``part`` has the first, in one tile of
    lanes. ``reached`` is the block's number of shells, a Python integer; a shell is the taps that
    one kernel size adds. Code is compiled for each such number, and a step runs the code for its
    block. ``window``, ``level`` and ``columns`` are as in :func:`_shift_window`.
    """
    lanes = config.lanes
    turns = lanes.lines // lanes.pack // joined
    tiles = lanes.width // lanes.tile
    least = len(lanes.shells) if config.all_shells else 1
    for reached in range(least, len(lanes.shells) + 1):

        @pl.when(step.reached == reached)
        def _(reached: int = reached) -> None:
            _shift_window(lanes, reached, step, window, level, columns)

            def one(turn: Any) -> None:
                group, tile = turn, 0
                if tiles > 1:
                    group = jax.lax.div(turn, jnp.int32(tiles))
                    tile = jax.lax.rem(turn, jnp.int32(tiles))
                multiply(_Part(lanes, group * joined, tile * lanes.tile), reached)

            tpu_kernel.unrolled(turns * tiles, one, max(1, _COLUMNS // (joined * lanes.tile)))


def _shift_window(
    lanes: Lanes, reached: int, step: Step, window: Any, level: Any, columns: Any
) -> None:
    """Write copies of a block's window to ``columns``, one for each shift along W.

    Args:
      lanes: the block layout.
      reached: number of leading shells (taps that one kernel size adds) whose products are
        computed.
      step: the step of the kernel, which tells the block.
      window: reference to the lines that are loaded for the block.
      level: reference to the levels (numbers of shells) of these lines, if ``lanes.masks_source``.
        Then each shell has its own copies, in which positions without the shell are zero.
      columns: reference to the copies, one for each entry of ``lanes.slots``.
    """
    channels = window.shape[0] // lanes.taken
    needed: dict[int, set[int]] = {}
    for number, passes in enumerate(lanes.shells[:reached]):
        for one in passes:
            needed.setdefault(one.line, set()).add(number if lanes.masks_source else 0)
    first, start = lanes.begin(step.block), lanes.start(step.block)

    def line(at: Any) -> None:
        source = first + at
        inside = (source >= 0) & (source < lanes.high)
        own = jnp.clip(source - start, 0, lanes.taken - 1)
        rows = _paired(window[_rows(own, 1, channels), :])
        rows = jnp.where(inside, rows, jnp.zeros_like(rows))
        lane = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
        has = jnp.broadcast_to(level[own], rows.shape) if lanes.masks_source else None
        for turn, numbers in sorted(needed.items()):
            shift = lanes.shifts[turn]
            found, seen = rows, has
            if shift:
                # found[l] = rows[l + shift], or zero where l + shift is outside of the grid.
                back = -shift % lanes.width
                within = (lane >= -shift) & (lane < lanes.wide - shift)
                found = pltpu.roll(found, back, 1)
                if seen is None:
                    found = jnp.where(within, found, jnp.zeros_like(found))
                else:
                    seen = jnp.where(within, pltpu.roll(seen, back, 1), jnp.zeros_like(seen))
            for number in sorted(numbers):
                kept = found
                if seen is not None:
                    kept = jnp.where(seen > number, found, jnp.zeros_like(found))
                columns[lanes.slot(number, turn), _rows(at, 1, channels), :] = _single(
                    kept, columns.dtype
                )

    tpu_kernel.unrolled(lanes.window, line)


def _paired(rows: jax.Array) -> jax.Array:
    """Return pairs of 16-bit rows as 32-bit rows, which one instruction can move or mask.

    Rows of 32-bit values are returned as they are.
    """
    return pltpu.bitcast(rows, jnp.int32) if rows.dtype.itemsize == 2 else rows


def _single(rows: jax.Array, dtype: Any) -> jax.Array:
    """Split 32-bit rows into rows of ``dtype``, the inverse of :func:`_paired`."""
    return pltpu.bitcast(rows, dtype) if rows.dtype != dtype else rows


def _lay_out(lanes: Lanes, taps: Any, w: Any, weights: Any) -> None:
    """Write the weight matrices of all passes to ``weights``, ``[passes, P * C_result, P * C]``.

    A pass is one matrix product of groups of P positions. ``taps`` has, for each pass, source and
    output of a group, the index in ``w`` of the weight that joins them, see ``tpu_kernel.Steps``.
    """
    pack = lanes.pack

    def one(number: Any) -> None:
        found = []
        for source in range(pack):
            place = (number * pack + source) * pack
            found.append(jnp.concatenate([w[taps[place + a]] for a in range(pack)]))
        weights[number] = jnp.concatenate(found, axis=1)

    tpu_kernel.unrolled(len(lanes.passes), one, 1)


def _columns(lanes: Lanes, channels: int, dtype: Any) -> Any:
    """Return the scratch array for shifted windows, as ``pltpu.VMEM(shape, dtype)``.

    It has a window of ``channels`` channels for each entry of ``lanes.slots``.
    """
    return pltpu.VMEM((len(lanes.slots), lanes.window * channels, lanes.width), dtype)


def _block(lanes: Lanes, channels: int) -> Callable[..., pl.BlockSpec]:
    """Return a function that creates the ``BlockSpec`` of a result or cotangent.

    The array has ``channels`` channels. The argument of that function is another function, which
    maps the grid indices of a step to the number of the block that the step computes.
    """
    shape = (lanes.lines * channels, lanes.width)

    def spec(of_step: Callable[..., Any]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda *place: (of_step(*place), 0))

    return spec


def _call(
    config: LaneConfig,
    steps: Steps,
    x: jax.Array,
    level: jax.Array,
    body: Callable[..., None],
    channels: int,
    other: tuple[jax.Array, Any],
    out: tuple[Any, Callable[..., pl.BlockSpec]],
    scratch: list[Any],
) -> jax.Array:
    """Run a Pallas kernel with one step for each block of lines, and return its result.

    Args:
      config, steps, x, level: as in :func:`product`.
      body: the kernel, a function of a :class:`Step` and of refs: a window of ``x``, levels,
        ``other``, ``out``, ``scratch``.
      channels: number of channels of a source.
      other: the operand that is not ``x``, and its ``BlockSpec`` or the result of :func:`_block`.
      out: shape of the result, and a function that creates its ``BlockSpec``, like that from
        :func:`_block`.
      scratch: shapes of the scratch memory.
    """
    lanes = config.lanes
    number = steps.order.shape[0] // config.stripes

    def block_of(stripe: Any, step: Any, order: Any, *_: Any) -> Any:
        return order[stripe * number + step]

    def line_of(*place: Any) -> Any:
        block = block_of(*place)
        return jax.lax.div(block, jnp.int32(lanes.number)) * lanes.high + lanes.start(block)

    def window(*place: Any) -> Any:
        return pl.multiple_of(line_of(*place) * channels, tpu_kernel.TILE_ROWS), 0

    taken, width = lanes.taken, lanes.width
    specs = [pl.BlockSpec((pl.Element(taken * channels), pl.Element(width)), window)]
    if lanes.masks_source:
        shape = tuple(map(pl.Element, (taken, 1, width)))
        specs.append(pl.BlockSpec(shape, lambda *place: (line_of(*place), 0, 0)))
    else:
        shape = (lanes.lines, 1, width)
        specs.append(pl.BlockSpec(shape, lambda *place: (block_of(*place), 0, 0)))
    specs.append(other[1] if isinstance(other[1], pl.BlockSpec) else other[1](block_of))

    operands = list(zip((x, level, other[0]), specs, strict=True))
    result = out[0], out[1](block_of)
    return tpu_kernel.call_by_blocks(config, steps, body, operands, result, scratch)
