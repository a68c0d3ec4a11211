"""The Pallas kernels of dynamic products on TPUs, which compute blocks of positions.

``blocks.py`` defines the terms. A step of the grid is one block. The window of the block is in
vector memory, so no row is gathered. Shells (sets of taps) that no position of the block has are
skipped: ``reached`` is the number of the block's shells, known before the step starts. If only some
positions of a block have a shell, the other positions are masked, in the result of ``forward``, and
in the cotangents of ``dgrad`` and ``wgrad``.

A pass reads rows that begin at its column. So for each column a copy of the window is written to
the scratch array ``columns``, shifted to begin there, see :class:`_ShiftedLine`. To read another
line of the window, a pass reads the same copy at another address.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax import _compat
from voxax.kernels.dynamic.blocks import TILE_ROWS, Blocks, Pass
from voxax.kernels.implicit_gemm.windows import CHANNELS

_ROWS_OF_A_PRODUCT = 512
"""Number of rows of a block that are multiplied at a time. With more rows, sums leave the registers
more often; with fewer rows, the matrix unit waits more often."""
_UNROLLED = 4
"""Number of iterations of a loop that the compiler may interleave, see :func:`unrolled`."""


@dataclasses.dataclass(frozen=True)
class BlockConfig:
    """Static parameters of one kernel call; see :mod:`voxax.kernels.dynamic.blocks` for the terms.

    Attributes:
      blocks: the block layout.
      exact: whether products of float32 operands have full precision.
      vmem_bytes: bytes of vector memory that the compiler may use.
      stripes: number of parts of the grid that may run at the same time, one on each core.
      masks_source: whether a shell that a position's size lacks is masked in the source, as in
        dgrad. Otherwise it is masked in the result.
      repeats: whether a step for which no block is left computes the stripe's last block again.
        False if steps add to one result, as in wgrad.
      all_shells: whether every block is known to have all shells, that is, all taps. Then only
        code for this case is compiled.
      interpret: whether to run as plain JAX, on any platform.
    """

    blocks: Blocks
    exact: bool
    vmem_bytes: int
    stripes: int = 1
    masks_source: bool = False
    repeats: bool = True
    all_shells: bool = False
    interpret: Any = False

    @functools.cached_property
    def slots(self) -> dict[tuple[int, int], int]:
        """The index in scratch memory of each shifted window, by ``(shell, column)``.

        A window is a block and its halo, here shifted along W so that it begins at position
        ``column``. A shell is the taps that a kernel size adds to the next smaller size. If
        ``masks_source`` is False, all shells read the same shifted windows, and the shell in the
        key is 0.
        """
        found = (
            (number if self.masks_source else 0, p.column)
            for number, shell in enumerate(self.blocks.shells)
            for p in shell.passes
        )
        return {key: place for place, key in enumerate(sorted(set(found)))}

    def slot(self, number: int, column: int) -> int:
        """Return the index in scratch memory of the window that shell ``number`` reads.

        The window is shifted to begin at position ``column``; see :attr:`slots`.
        """
        return self.slots[number if self.masks_source else 0, column]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Steps:
    """The scalar operands of a kernel, which control its steps: one-dimensional ``int32`` arrays.

    A stripe is the steps that run one after another on one core. All stripes are equally long. A
    pass is a matrix product, for rows of P positions.

    Attributes:
      order: ``[stripes * steps]``, the block that each step computes, stripe after stripe.
      reached: ``[blocks]``, the largest level in each block, or in the block and its halo if
        sources are masked; see :func:`~voxax.kernels.dynamic.blocks.levels_of`.
      taps: for :func:`product`, ``[passes * P * P]``, the result of
        :func:`~voxax.kernels.dynamic.blocks.taps_of` with ``none=K``, the index of the weight's
        last tap, which is zero. For :func:`weight_product`, ``[K * P]``, the result of
        :func:`~voxax.kernels.dynamic.blocks.places_of`.
    """

    order: jax.Array
    reached: jax.Array
    taps: jax.Array

    @classmethod
    def of(cls, reached: jax.Array, stripes: int, taps: np.ndarray) -> Steps:
        """Return the scalars of a kernel call whose blocks are divided among ``stripes``.

        ``reached`` and ``taps`` are as in the attributes. The stripes take turns to get the
        remaining block with the largest ``reached``. A single stripe gets the blocks in order.
        """
        blocks = len(reached)
        stripes = min(stripes, blocks)
        order = jnp.arange(blocks, dtype=jnp.int32)
        # Stripe s takes places s, s + stripes, s + 2 stripes, ... of the sorted blocks.
        if stripes > 1:
            order = jnp.argsort(-reached, stable=True).astype(jnp.int32)
            # A stripe with one block fewer gets its last block twice.
            steps = -(-blocks // stripes)
            places = np.arange(stripes)[:, None] + stripes * np.arange(steps)
            order = order[np.where(places < blocks, places, places - stripes).reshape(-1)]
        return cls(order, reached, jnp.asarray(taps, jnp.int32))

    @property
    def scalars(self) -> tuple[jax.Array, ...]:
        """The arrays ``(order, reached, taps)``, in the order of the kernel's arguments."""
        return self.order, self.reached, self.taps


# Jitted, so that layers of the same sizes are traced and compiled once.
@functools.partial(jax.jit, static_argnums=0)
def product(
    config: BlockConfig, steps: Steps, x: Any, levels: Any, seen: Any, w: Any, like: Any
) -> jax.Array:
    """Run forward or dgrad: add the products of all taps, masked by each position's kernel size.

    The grid is ``[B, D, H, W]``. A shell is the taps that a kernel size adds to the next smaller
    size; :mod:`voxax.kernels.dynamic.blocks` explains the other terms.

    Args:
      config: static parameters.
      steps: the block of each step, and other scalars.
      x: the source with its margin, ``[phases * B * D, H, W / P, P * C_in]``, with P positions in
        a row.
      levels: ``float32[blocks, MOST_PACKED, rows]``, the level (number of shells) of each output,
        where axis 1 is its position in a row, to mask shells in the result (forward); or None.
      seen: the level of each source, repeated for all channels, in the shape and dtype of ``x``, to
        mask shells in the source (dgrad); or None.
      w: ``[K + 1, C_in, C_out]``, for K taps and a last tap of zeros; C_in and C_out are the
        numbers of channels of source and result.
      like: an array with the dtype of the result.

    Returns:
      ``[B * D, H', W' / P, P * C_out]``, where H' and W' are padded to whole blocks.
    """
    blocks = config.blocks
    inside, channels = x.shape[3], blocks.pack * w.shape[2]
    along, high, wide = blocks.number
    out = (along, high * blocks.lines, wide * blocks.length, channels)
    one_plane = len(blocks.planes) == 1

    def body(step: Step, windows: Any, seens: Any, level: Any, w_ref: Any, out: Any, *rest: Any):
        columns, weights, *totals = rest

        @pl.when(step.begins)
        def _() -> None:
            _lay_out(blocks, step.taps, w_ref, weights)

        @pl.when(step.reached == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        def multiply(part: _Part, plane: int, reached: int) -> None:
            has = None if level is None else _spread(level[:, part.rows], blocks.pack, channels)
            y = jnp.zeros((part.size, channels), jnp.float32)
            for number, place, passes in blocks.on_plane(plane, reached):
                # The passes of a shell become one product: sum_p x_p w_p = [x_p] [w_p].
                taken = [part.taken(config, columns, number, p) for p in passes]
                weight = weights[pl.ds(place * inside, len(passes) * inside), :]
                terms = dot(config, jnp.concatenate(taken, axis=1), weight, 1, 0)
                # All positions of the block are multiplied. Positions without the shell are masked.
                if has is not None:
                    terms = jnp.where(has > number, terms, jnp.zeros_like(terms))
                y = y + terms
            if one_plane:
                shape = (part.lines, blocks.length, channels)
                out[pl.ds(part.first, part.lines)] = y.reshape(shape).astype(out.dtype)
            else:
                totals[0][part.rows, :] += y

        def begin() -> None:
            for total in totals:
                total[...] = jnp.zeros_like(total)

        def end() -> None:
            for total in totals:
                out[...] = total[...].reshape(out.shape).astype(out.dtype)

        _each_level(config, step, windows, seens, columns, begin, multiply, end)

    scratch = [
        _columns(config, x),
        pltpu.VMEM((len(blocks.passes) * inside, channels), w.dtype),
        # Planes add up in float32 before the result is rounded.
        *([] if one_plane else [pltpu.VMEM((blocks.rows, channels), jnp.float32)]),
    ]
    return _call(
        config, steps, x, levels, seen, body,
        # One buffer, because its block never changes.
        (w, pl.BlockSpec(w.shape, lambda *_: (0, 0, 0), pipeline_mode=pl.Buffered(1))),
        (_compat.shape_like(out, like.dtype, x), _tile(blocks, channels)),
        scratch,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: BlockConfig, steps: Steps, x: Any, levels: Any, dy: Any) -> jax.Array:
    """Run wgrad: for each of K taps, sum the products of cotangents and sources over positions.

    Args:
      config, steps, x, levels: as in :func:`product`; the level of an output masks its cotangent.
      dy: ``[B * D, H', W' / P, P * C_out]``, where H' and W' are padded to whole blocks.

    Returns:
      ``float32[config.stripes, K, C_out, C_in]``: each stripe has the sum over its blocks. The sum
      over stripes is left to the caller.
    """
    blocks, channels, inside = config.blocks, dy.shape[3], x.shape[3]
    own = channels // blocks.pack, inside // blocks.pack
    shape = (config.stripes, steps.taps.shape[0] // blocks.pack, *own)

    def body(
        step: Step, windows: Any, seens: Any, level: Any, dy_ref: Any, out: Any, *scratch: Any
    ):
        columns, sums = scratch

        @pl.when(step.begins)
        def _() -> None:
            sums[...] = jnp.zeros_like(sums)

        def multiply(part: _Part, plane: int, reached: int) -> None:
            rows = dy_ref[pl.ds(part.first, part.lines)].astype(jnp.float32)
            rows = jnp.transpose(rows.reshape(part.size, channels))
            has = _stacked(level[:, part.rows], blocks.pack, channels)
            for number, place, passes in blocks.on_plane(plane, reached):
                # The cotangent is masked, so a position adds nothing to taps beyond its size.
                own = jnp.where(has > number, rows, jnp.zeros_like(rows)).astype(x.dtype)
                for turn, one in enumerate(passes):
                    taken = part.taken(config, columns, number, one)
                    sums[place + turn] += dot(config, own, taken, 1, 0)

        _each_level(config, step, windows, seens, columns, None, multiply, None)

        @pl.when(step.ends)
        def _() -> None:
            sum_taps(blocks.pack, step.taps, sums, out)

    spec = pl.BlockSpec((None, *shape[1:]), lambda stripe, *_: (stripe, 0, 0, 0))
    return _call(
        config, steps, x, levels, None, body,
        (dy, _tile(blocks, channels)),
        (_compat.shape_like(shape, jnp.float32, x), lambda _: spec),
        [_columns(config, x), pltpu.VMEM((len(blocks.passes), channels, inside), jnp.float32)],
    )  # fmt: skip


class Step:
    """What one step of the kernel has to compute, as traced scalars read from :class:`Steps`.

    Attributes:
      block: number of the block that the step computes.
      begins: whether the step is the first of its stripe (the steps of one core).
      ends: whether the step is the last of its stripe.
      reached: number of shells (sets of taps) that the step computes. It is 0 if the stripe has no
        block left and ``config.repeats`` is False.
      taps: the array of :class:`Steps`.
    """

    def __init__(self, config: Any, order: Any, reached: Any, taps: Any) -> None:
        stripe, step = pl.program_id(0), pl.program_id(1)
        self.block = block = order[stripe * pl.num_programs(1) + step]
        left = step * config.stripes + stripe < reached.shape[0]
        self.begins, self.ends = step == 0, step == pl.num_programs(1) - 1
        self.taps = taps
        # A block of the result is written in any case, so zeros would overwrite the last result.
        self.reached = reached[block] if config.repeats else jnp.where(left, reached[block], 0)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a block that is multiplied at once: ``lines`` lines, from line ``first`` on.

    A line is all rows of the block with the same index along H.
    """

    blocks: Blocks
    first: Any
    lines: int

    @property
    def size(self) -> int:
        """The number of rows of the part."""
        return self.lines * self.blocks.length

    @property
    def rows(self) -> Any:
        """The part's rows, as a slice of the block."""
        return pl.ds(pl.multiple_of(self.first * self.blocks.length, TILE_ROWS), self.size)

    def taken(self, config: BlockConfig, columns: Any, number: int, one: Pass) -> jax.Array:
        """Return the source rows that one matrix product reads for this part, ``[size, P * C]``.

        Args:
          config: static parameters.
          columns: reference to the shifted windows, as :func:`_shift_window` writes them.
          number: number of the pass's shell: the kernel offsets that one kernel size adds.
          one: the pass, that is, the matrix product.
        """
        slot = config.slot(number, one.column)
        found = columns[slot, pl.ds(self.first + one.line, self.lines)]
        return found.reshape(self.size, found.shape[2])


def _each_level(
    config: BlockConfig,
    step: Step,
    windows: Any,
    seens: Any,
    columns: Any,
    begin: Callable[[], None] | None,
    multiply: Callable[[_Part, int, int], None],
    end: Callable[[], None] | None,
) -> None:
    """Call ``multiply(part, plane, reached)`` for each plane that a block reads and each part.

    A plane is the sources with one index along D and one phase (position modulo stride).
    ``reached`` is the block's number of shells, a Python integer; a shell is the taps that one
    kernel size adds. Code is compiled for each such number, and a step runs the code for its block.
    So no branch separates shells, and their products can overlap.

    Args:
      config, step: parameters and step of the kernel.
      windows: for each plane the ref of the block's window.
      seens: for each plane the ref of the levels (numbers of shells) of the window's positions;
        empty if sources are not masked.
      columns: ref to which the window is written, shifted to begin at each column.
      begin, end: functions called before the first plane and after the last plane, or None.
      multiply: function that multiplies a part of the block on one plane.
    """
    blocks = config.blocks
    most = max(1, _ROWS_OF_A_PRODUCT // blocks.length)
    lines = max(n for n in range(1, blocks.lines + 1) if n <= most and blocks.lines % n == 0)
    least = len(blocks.shells) if config.all_shells else 1
    for reached in range(least, len(blocks.shells) + 1):

        @pl.when(step.reached == reached)
        def _(reached: int = reached) -> None:
            if begin is not None:
                begin()
            for plane in range(len(blocks.planes)):
                if not blocks.on_plane(plane, reached):
                    continue
                _shift_window(config, reached, plane, windows, seens, columns)

                def one(number: Any, carry: Any, plane: int = plane) -> Any:
                    multiply(_Part(blocks, number * lines, lines), plane, reached)
                    return carry

                jax.lax.fori_loop(0, blocks.lines // lines, one, 0)
            if end is not None:
                end()


def _lay_out(blocks: Blocks, taps: Any, w: Any, weights: Any) -> None:
    """Write the weight matrices of all passes to ``weights``, ``[passes * P * C_in, P * C_out]``.

    A pass is one matrix product of rows of P positions. ``taps`` has, for each pass, source and
    output of a row, the index in ``w`` of the weight that joins them, see :class:`Steps`.
    """
    pack, channels = blocks.pack, w.shape[1]

    def one(number: Any) -> None:
        # ``number`` counts passes and their sources. The outputs are side by side.
        found = [w[taps[number * pack + a]] for a in range(pack)]
        rows = pl.ds(pl.multiple_of(number * channels, TILE_ROWS), channels)
        weights[rows, :] = jnp.concatenate(found, axis=1)

    unrolled(len(blocks.passes) * pack, one)


def sum_taps(pack: int, places: Any, sums: Any, out: Any) -> None:
    """Write the weight gradient ``[K, C_out, C_in]`` to ``out``, from gradients of larger matrices.

    Each matrix product (pass) has P = ``pack`` sources and P outputs. ``sums`` has the gradients of
    the matrices, ``[passes, P * C_out, P * C_in]``. The gradient of a tap is the sum of P blocks
    ``[C_out, C_in]``, one for each output. ``places`` lists the blocks, see
    :func:`~voxax.kernels.dynamic.blocks.places_of`.
    """
    taps, high, wide = out.shape
    # Sources that share a register are loaded together. Their number is a power of two.
    lanes = max(wide, CHANNELS)
    shared = lanes // wide

    def one(tap: Any, carry: Any) -> Any:
        # One sum for each place in the lanes, so that sums are rotated, not terms.
        found = [jnp.zeros((high, lanes), jnp.float32)] * shared
        for output in range(pack):
            place = places[tap * pack + output]
            number, source = place >> (pack.bit_length() - 1), place & (pack - 1)
            first = pl.multiple_of((source & -shared) * wide, CHANNELS)
            rows = sums[number, output * high : (output + 1) * high, pl.ds(first, lanes)]
            at = source & (shared - 1)
            found = [f + jnp.where(at == n, rows, 0) for n, f in enumerate(found)]
        out[tap] = sum(f[:, n * wide : (n + 1) * wide] for n, f in enumerate(found))
        return carry

    jax.lax.fori_loop(0, taps, one, 0)


def _tile(blocks: Blocks, channels: int) -> Callable[..., pl.BlockSpec]:
    """Return a function that creates the ``BlockSpec`` of a result or cotangent.

    The array has ``channels`` channels. The argument of that function is another function, which
    maps the grid indices of a step to the number of the block that the step computes.
    """
    shape = (None, blocks.lines, blocks.length, channels)

    def spec(of_step: Callable[..., Any]) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda *place: (*_place(blocks, of_step(*place)), 0))

    return spec


def _place(blocks: Blocks, block: Any) -> tuple[Any, Any, Any]:
    """Return the indices of block number ``block`` along ``B * D``, H and W."""
    _, high, wide = blocks.number
    rest = jax.lax.div(block, jnp.int32(wide))
    return (
        jax.lax.div(rest, jnp.int32(high)),
        jax.lax.rem(rest, jnp.int32(high)),
        jax.lax.rem(block, jnp.int32(wide)),
    )


def _columns(config: BlockConfig, x: jax.Array) -> Any:
    """Return the scratch array for shifted windows of ``x``, as ``pltpu.VMEM(shape, dtype)``.

    It has a window for each entry of ``config.slots``.
    """
    blocks = config.blocks
    shape = (len(config.slots), blocks.window[0], blocks.length, x.shape[3])
    return pltpu.VMEM(shape, x.dtype)


def _shift_window(
    config: BlockConfig, reached: int, plane: int, windows: Any, seens: Any, columns: Any
) -> None:
    """Write copies of a window to ``columns``, one for each column at which a product begins.

    Args:
      config: static parameters.
      reached: number of leading shells (taps that one kernel size adds) whose products are
        computed.
      plane: number of the window's plane: the sources with one index along D and one phase.
      windows, seens: as in :func:`_each_level`. If ``seens`` is not empty, each shell has its own
        copies, in which positions whose kernel size lacks the shell are zero.
      columns: reference to the copies, one for each entry of ``config.slots``.
    """
    blocks = config.blocks
    needed = {
        config.slot(number, p.column): (number, p.column)
        for number, _, passes in blocks.on_plane(plane, reached)
        for p in passes
    }

    def line(at: Any) -> None:
        rows = windows[plane][0, at]
        if not seens:
            shifted = _ShiftedLine(blocks, rows)
            for slot, (_, column) in needed.items():
                columns[slot, at] = shifted.from_column(column)
            return
        # Comparisons need 32 bits.
        rows, has = rows.astype(jnp.float32), seens[plane][0, at].astype(jnp.float32)
        for number in sorted({number for number, _ in needed.values()}):
            shifted = _ShiftedLine(blocks, jnp.where(has > number, rows, jnp.zeros_like(rows)))
            for slot, (own, column) in needed.items():
                if own == number:
                    columns[slot, at] = shifted.from_column(column).astype(columns.dtype)

    unrolled(blocks.window[0], line)


def unrolled(number: int, run: Callable[[Any], None], at_once: int = _UNROLLED) -> None:
    """Call ``run`` with each integer from 0 to ``number - 1``, in a partly unrolled loop.

    An iteration makes ``at_once`` calls. The compiler can interleave them, which hides the long
    latency of operations such as rotations of registers.
    """

    def some(turn: Any, carry: Any) -> Any:
        for at in range(at_once):
            run(turn * at_once + at)
        return carry

    turns, left = divmod(number, at_once)
    jax.lax.fori_loop(0, turns, some, 0)
    for at in range(left):
        run(turns * at_once + at)


class _ShiftedLine:
    """One line of a window, ``[rows, P * C]``, of which a copy can begin at any of its positions.

    A row has P positions, so a copy is rotated unless it begins with a row. Rotations are cached.
    Two rows of 16-bit values are rotated as one row of 32-bit values, because the compiler needs
    twice as many instructions for single rows.
    """

    def __init__(self, blocks: Blocks, rows: jax.Array) -> None:
        self._blocks, self._dtype = blocks, rows.dtype
        self._paired = rows.dtype.itemsize == 2
        self._line = pltpu.bitcast(rows, jnp.int32) if self._paired else rows
        self._known: dict[tuple[int, int], jax.Array] = {}

    def from_column(self, column: int) -> jax.Array:
        """Return ``[length, P * C]``: the rows that begin at position ``column`` of the line.

        ``length`` is the number of rows of a block's line.
        """
        first, past = divmod(column, self._blocks.pack)
        found = self._rotated(first, past)
        if past:
            after = self._rotated(first + 1, past)
            lane = jax.lax.broadcasted_iota(jnp.int32, found.shape, 1)
            channels = found.shape[1] // self._blocks.pack
            found = jnp.where(lane < found.shape[1] - past * channels, found, after)
        return pltpu.bitcast(found, self._dtype) if self._paired else found

    def _rotated(self, first: int, past: int) -> jax.Array:
        """Return rows from row ``first`` on, each rotated left by ``past`` positions.

        There are as many rows as in a line of a block, in pairs for 16-bit values. The result is
        cached.
        """
        if (first, past) not in self._known:
            if past:
                lanes = self._line.shape[1] // self._blocks.pack
                rows = self._rotated(first, 0)
                found = pltpu.roll(rows, rows.shape[1] - past * lanes, 1)
            else:
                found = self._from_row(first)
            self._known[first, past] = found
        return self._known[first, past]

    def _from_row(self, first: int) -> jax.Array:
        """Return as many rows as a line of a block has, from row ``first`` of the window's line on.

        16-bit rows are returned in pairs, each pair as one row of 32-bit values.
        """
        if not self._paired:
            return self._line[first : first + self._blocks.length]
        pair, number = first // 2, self._blocks.length // 2
        here = self._line[pair : pair + number]
        if first % 2 == 0:
            return here
        sixteen = jnp.full(here.shape, 16, jnp.int32)
        after = self._line[pair + 1 : pair + 1 + number]
        return jax.lax.shift_right_logical(here, sixteen) | jax.lax.shift_left(after, sixteen)


def _spread(levels: jax.Array, pack: int, channels: int) -> jax.Array:
    """Return ``[rows, channels]``: for each channel of a row, the level of its position.

    A row has ``pack`` positions, with ``channels // pack`` channels each, one after the other. The
    level of a position is the number of shells within its kernel size; a shell is the taps that one
    size adds. ``levels`` is ``[MOST_PACKED, rows]``: the first ``pack`` entries of axis 0 are the
    positions of a row.
    """
    # A product with ones on the matrix unit, which is exact for small integers and faster than
    # moving lanes.
    shape = (levels.shape[0], channels)
    lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    own = jax.lax.div(lane, jnp.full(shape, channels // pack, jnp.int32))
    ones = jnp.where(own == jax.lax.broadcasted_iota(jnp.int32, shape, 0), 1.0, 0.0)
    return jax.lax.dot_general(
        levels, ones.astype(levels.dtype), (((0,), (0,)), ((), ())),
        precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32,
    )  # fmt: skip


def _stacked(levels: jax.Array, pack: int, channels: int) -> jax.Array:
    """Return the transposed result of :func:`_spread`, ``[channels, rows]``."""
    shape = (channels // pack, levels.shape[1])
    return jnp.concatenate([jnp.broadcast_to(levels[p : p + 1], shape) for p in range(pack)])


def dot(config: Any, a: jax.Array, b: jax.Array, a_axis: int, b_axis: int) -> jax.Array:
    """Contract ``a_axis`` of ``a`` with ``b_axis`` of ``b``; return the sums in float32.

    If ``config.exact``, products have full precision, else JAX's default precision.
    """
    precision = jax.lax.Precision.HIGHEST if config.exact else jax.lax.Precision.DEFAULT
    if config.interpret:  # JAX 0.12 on CPUs lacks some transposed bfloat16 products.
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    return jax.lax.dot_general(
        a, b, (((a_axis,), (b_axis,)), ((), ())),
        precision=precision, preferred_element_type=jnp.float32,
    )  # fmt: skip


def _call(
    config: BlockConfig,
    steps: Steps,
    x: jax.Array,
    levels: jax.Array | None,
    seen: jax.Array | None,
    body: Callable[..., None],
    other: tuple[jax.Array, Any],
    out: tuple[Any, Callable[..., pl.BlockSpec]],
    scratch: list[Any],
) -> jax.Array:
    """Run a Pallas kernel with one step for each block, and return its result.

    Args:
      config, steps, x, levels, seen: as in :func:`product`.
      body: the kernel, a function of a :class:`Step` and of refs: windows of ``x``, windows of
        ``seen``, levels, ``other``, ``out``, ``scratch``.
      other: the operand that is not ``x``, and its ``BlockSpec`` or the result of :func:`_tile`.
      out: shape of the result, and a function that creates its ``BlockSpec``, like that from
        :func:`_tile`.
      scratch: shapes of the scratch memory.
    """
    blocks = config.blocks
    number = steps.order.shape[0] // config.stripes

    def block_of(stripe: Any, step: Any, order: Any, *_: Any) -> Any:
        return order[stripe * number + step]

    def window(plane: tuple[int, int]) -> pl.BlockSpec:
        phase, shift = plane
        depth = blocks.source[0]

        def start(*place: Any) -> Any:
            along, high, wide = _place(blocks, block_of(*place))
            scene = jax.lax.div(along, jnp.int32(blocks.outputs[0]))
            inner = jax.lax.rem(along, jnp.int32(blocks.outputs[0])) + shift
            first = (phase * blocks.scenes + scene) * depth + inner
            rows = pl.multiple_of(wide * blocks.length, TILE_ROWS)
            return first, high * blocks.lines + blocks.begin, rows, 0

        shape = (1, *blocks.window, x.shape[3])
        return pl.BlockSpec(tuple(map(pl.Element, shape)), start)

    windows = [window(plane) for plane in blocks.planes]
    arrays, specs = [x] * len(windows), list(windows)
    if seen is not None:
        arrays, specs = arrays + [seen] * len(windows), specs + windows
    if levels is not None:
        shape = (None, *levels.shape[1:])
        arrays.append(levels)
        specs.append(pl.BlockSpec(shape, lambda *place: (block_of(*place), 0, 0)))
    arrays.append(other[0])
    specs.append(other[1] if isinstance(other[1], pl.BlockSpec) else other[1](block_of))

    def run(step: Step, *refs: Any) -> None:
        found, rest = refs[: len(windows)], refs[len(windows) :]
        seens, rest = (
            (rest[: len(windows)], rest[len(windows) :]) if seen is not None else ((), rest)
        )
        level, rest = (rest[0], rest[1:]) if levels is not None else (None, rest)
        body(step, found, seens, level, *rest)

    result = out[0], out[1](block_of)
    return call_by_blocks(
        config, steps, run, list(zip(arrays, specs, strict=True)), result, scratch
    )


def call_by_blocks(
    config: Any,
    steps: Steps,
    body: Callable[..., None],
    operands: list[tuple[jax.Array, pl.BlockSpec]],
    out: tuple[Any, pl.BlockSpec],
    scratch: list[Any],
) -> jax.Array:
    """Run the Pallas kernel ``body`` over a grid of (stripes, steps), and return its result.

    Args:
      config: a :class:`BlockConfig`, or the ``LaneConfig`` of ``tpu_lanes_kernel.py``.
      steps: the block of each step, and other scalars.
      body: the kernel, a function of a :class:`Step`, then of the refs of the operands, of the
        result and of scratch memory.
      operands: each operand and its ``BlockSpec``.
      out: the result's shape (with dtype) and ``BlockSpec``.
      scratch: shapes of the scratch memory.
    """
    scalars = steps.scalars

    def run(*refs: Any) -> None:
        known, rest = refs[: len(scalars)], refs[len(scalars) :]
        body(Step(config, *known), *rest)

    call = pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(config.stripes, steps.order.shape[0] // config.stripes),
            in_specs=[spec for _, spec in operands],
            out_specs=out[1],
            scratch_shapes=scratch,
        ),
        out_shape=out[0],
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=config.vmem_bytes,
            # Stripes are independent, so a device with two cores runs two at once.
            dimension_semantics=("parallel", "arbitrary"),
        ),
        interpret=config.interpret,
    )
    # TPUs have no 64-bit integers. With x64, a Python number in an index map would be one.
    with jax.enable_x64(False):
        return call(*scalars, *(array for array, _ in operands))
