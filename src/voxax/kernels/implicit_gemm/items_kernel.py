"""The Pallas kernel that builds the lists of items of a neighbor table on a TPU, see ``items.py``.

A TPU gathers and scatters numbers one at a time, but moves whole registers. So items are found
for 8 taps together, one tap in each row of a register, with the groups of a block in the lanes.
Groups without an item leave gaps, so items are moved to the front by steps of 1, 2, 4, ... lanes.
No item has to move less far than an item on its left, so two items never reach the same lane.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from voxax.kernels.implicit_gemm.items import GROUP, PASS, PIECE, TAPS, Shape
from voxax.kernels.implicit_gemm.windows import SPILLED

# Bits of the distance that an item moves, which is less than a block's groups plus 128.
_MOVE_BITS = 12
_NONE = 2**31 - 1


@functools.partial(jax.jit, static_argnames="interpret")
def find_items(neighbors: jax.Array, interpret: Any = False) -> jax.Array:
    """Return the lists of items of a neighbor table ``int32[rows, K]``, see ``tpu_items._build``.

    If ``interpret`` is True, the kernel runs in Pallas' interpreter, on any platform.
    """
    rows, taps = neighbors.shape
    shape = Shape.of(rows, taps)
    width = shape.groups + PASS
    call = pl.pallas_call(
        functools.partial(_run, shape, rows, taps),
        grid=(shape.blocks, shape.taps // TAPS),
        in_specs=[pl.BlockSpec((TAPS, shape.block_rows), lambda block, taps: (taps, block))],
        out_specs=pl.BlockSpec((None, *shape.array[1:]), lambda block, _: (block, 0, 0)),
        scratch_shapes=[
            pltpu.VMEM((GROUP, TAPS, shape.groups), jnp.int32),
            pltpu.VMEM((3, TAPS, width), jnp.int32),
            pltpu.SMEM((2,), jnp.int32),
        ],
        out_shape=jax.ShapeDtypeStruct(shape.array, jnp.int32),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=_bytes(shape),
            dimension_semantics=("arbitrary", "arbitrary"),
        ),
        interpret=interpret,
    )
    with jax.enable_x64(False):
        return call(neighbors.T)


def _bytes(shape: Shape) -> int:
    """Return the bytes of vector memory that a call may use."""
    # Two buffers for a block of the lists, two for a block of the table, and ``left``.
    return SPILLED + 8 * shape.array[1] * PASS + 256 * shape.block_rows


def _run(
    shape: Shape, rows: int, taps: int, table: Any, out: Any, left: Any, moved: Any, state: Any
) -> None:
    block, tap_group = pl.program_id(0), pl.program_id(1)

    @pl.when(tap_group == 0)
    def _() -> None:
        state[0] = jnp.int32(0)  # pieces
        state[1] = jnp.int32(0)  # groups of rows that are their own neighbors

    _part(shape, rows - block * shape.block_rows, taps - tap_group * TAPS, table, left)

    @pl.when(tap_group == taps // 2 // TAPS)
    def _() -> None:
        state[1] = _take_own(shape, block, taps // 2 % TAPS, left)

    def find(_: Any) -> Any:
        begins, words = _find(left)
        pieces = _move_up(begins, words, state[0], moved)
        state[0] = _store(shape, tap_group, pieces, moved, out)
        return _any(left)

    jax.lax.while_loop(lambda more: more, find, _any(left))
    lane = jax.lax.broadcasted_iota(jnp.int32, (GROUP, PASS), 1)
    passes = pl.cdiv(state[0] * PIECE, PASS)
    out[pl.ds(shape.array[1] - GROUP, GROUP), :] = jnp.where(lane == 0, passes, state[1])


def _part(shape: Shape, rows: Any, taps: Any, table: Any, left: Any) -> None:
    """Copy a block's ``table`` to ``left``: ``left[j, tap, g] = table[tap, 8 * g + j]``.

    ``table`` has the neighbors of 8 taps. ``rows`` and ``taps`` are the numbers of rows and taps of
    the whole table that are left from the block's first row and tap on. Entries of ``left`` after
    these become -1 (no neighbor).
    """
    within = (TAPS, PASS)
    lane = jax.lax.broadcasted_iota(jnp.int32, within, 1)
    tap = jax.lax.broadcasted_iota(jnp.int32, within, 0)
    each = PASS // GROUP  # groups of a register

    def part(number: Any, _: None) -> None:
        begin = pl.multiple_of(number * PASS * GROUP, PASS)
        for j in range(GROUP):
            source = GROUP * jax.lax.rem(lane, jnp.int32(each)) + j
            found = jnp.full(within, -1, jnp.int32)
            for register in range(GROUP):
                values = table[:, pl.ds(begin + register * PASS, PASS)]
                values = jnp.take_along_axis(values, source, axis=1, mode="promise_in_bounds")
                found = jnp.where(lane // each == register, values, found)
            row = begin + GROUP * lane + j
            there = jnp.logical_and(row < rows, tap < taps)
            at = pl.ds(pl.multiple_of(number * PASS, PASS), PASS)
            left[j, :, at] = jnp.where(there, found, jnp.int32(-1))

    jax.lax.fori_loop(0, shape.groups // PASS, part, None)


def _take_own(shape: Shape, block: Any, tap: int, left: Any) -> Any:
    """Remove leading groups whose rows are their own neighbors from ``left``; return their number.

    A group is 8 output rows. ``tap`` is the number of the middle tap in ``left``, which has the
    neighbors that have no item yet, see :func:`_part`. The leading groups are those of ``block``
    before the first group in which ``tap`` has another neighbor, or none, for some row. Their
    entries for ``tap`` become -1, so they get no items of it.
    """
    within = (TAPS, shape.groups)
    group = jax.lax.broadcasted_iota(jnp.int32, within, 1)
    mine = jax.lax.broadcasted_iota(jnp.int32, within, 0) == tap
    other = jnp.zeros(within, jnp.int32)
    for j in range(GROUP):
        own = block * shape.block_rows + GROUP * group + j
        other = jnp.where(left[j] == own, other, jnp.int32(1))
    first = jnp.where(jnp.logical_and(mine, other == 1), group, jnp.int32(shape.groups))
    number = jnp.min(first)
    taken = jnp.logical_and(mine, group < number)
    for j in range(GROUP):
        left[j] = jnp.where(taken, jnp.int32(-1), left[j])
    return number


def _any(left: Any) -> Any:
    last = left[0]
    for j in range(1, GROUP):
        last = jnp.maximum(last, left[j])
    return jnp.max(last) >= 0


def _find(left: Any) -> tuple[jax.Array, jax.Array]:
    """Find the next item of each tap and group, and remove its neighbors from ``left``.

    A group is 8 output rows. An item is 8 consecutive input rows from the lowest neighbor in
    ``left`` on. Return ``(begins, words)``, each ``int32[TAPS, groups]``: the first input row of
    each item, and the word that describes its neighbors, see ``tpu_items._build``. The word is 0 if
    ``left`` has no neighbor of the tap and group.
    """
    # An item is 8 consecutive input rows, beginning with the lowest one in ``left``.
    begins = jnp.full(left.shape[1:], _NONE, jnp.int32)
    for j in range(GROUP):
        begins = jnp.where(left[j] < 0, begins, jnp.minimum(begins, left[j]))
    # Four bits for each of the group's 8 outputs: 8 + the place of its row in the item, or 0.
    words = jnp.zeros_like(begins)
    for j in range(GROUP):
        place = left[j] - begins
        inside = jnp.logical_and(left[j] >= 0, place < GROUP)
        words = words | jnp.where(inside, (place | GROUP) << (4 * j), 0)
        left[j] = jnp.where(inside, jnp.int32(-1), left[j])
    return begins, words


def _move_up(begins: jax.Array, words: jax.Array, pieces: Any, moved: Any) -> list[tuple[Any, Any]]:
    """Write the items that :func:`_find` returned to ``moved``, without gaps between a tap's items.

    ``moved`` is a reference to ``int32[3, TAPS, n]``: the first input row, the first output row in
    the block, and the word of each item. A piece is 16 items. ``pieces`` is the number of pieces
    that the block's list has so far.

    Returns:
      For each tap ``(index, count)``: the index in the block's list of the tap's first new piece,
      and the number of the tap's new items.
    """
    taps, groups = begins.shape
    exists = words != 0
    lane = jax.lax.broadcasted_iota(jnp.int32, begins.shape, 1)
    # until[g] becomes the number of items up to group g. After each step it counts the items of
    # the last 2 * step groups.
    until = jnp.where(exists, jnp.int32(1), jnp.int32(0))
    step = 1
    while step < groups:
        until = until + jnp.where(lane >= step, pltpu.roll(until, step, 1), 0)
        step *= 2
    tap = jax.lax.broadcasted_iota(jnp.int32, begins.shape, 0)
    found, first = [], jnp.zeros_like(until)
    for number in range(taps):
        count = jnp.max(jnp.where(tap == number, until, 0))
        found.append((pieces, count))
        first = jnp.where(tap == number, jax.lax.rem(pieces * PIECE, jnp.int32(PASS)), first)
        pieces = pieces + pl.cdiv(count, PIECE)
    # Item n = until - 1 of a tap moves from place lane + PASS to place first + n.
    distance = lane + PASS - (first + until - 1)
    packed = jnp.where(exists, (begins << _MOVE_BITS) | distance, 0)
    empty = jnp.zeros((taps, PASS), jnp.int32)
    packed = jnp.concatenate([empty, packed], axis=1)
    words = jnp.concatenate([empty, words], axis=1)
    width = groups + PASS
    for bit in range((width - 1).bit_length()):
        # An item whose distance has this bit comes from 2**bit places further on.
        nearer = [pltpu.roll(values, width - 2**bit, 1) for values in (packed, words)]
        comes = (nearer[0] >> bit) & 1 == 1
        stays = (packed >> bit) & 1 == 0
        packed, words = (
            jnp.where(comes, near, jnp.where(stays, values, 0))
            for near, values in zip(nearer, (packed, words), strict=True)
        )
    # The group of an item is its former place, place + distance, minus the empty front.
    place = jax.lax.broadcasted_iota(jnp.int32, packed.shape, 1)
    group = place + (packed & (2**_MOVE_BITS - 1)) - PASS
    moved[0] = packed >> _MOVE_BITS
    moved[1] = jnp.where(words == 0, jnp.int32(groups), group) * GROUP
    moved[2] = words
    return found


def _store(shape: Shape, tap_group: Any, found: list[tuple[Any, Any]], moved: Any, out: Any) -> Any:
    """Append the items in ``moved`` to the list ``out``; return its new number of pieces.

    A piece is 16 items. The items belong to the ``TAPS`` taps from ``tap_group * TAPS`` on.
    ``found`` is the result of :func:`_move_up`.
    """
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, PASS), 1)
    for number, (piece, count) in enumerate(found):

        @pl.when(count > 0)
        def _(number: int = number, piece: Any = piece, count: Any = count) -> None:
            row, begin = _divided(piece * PIECE)

            def store(place: Any, _: None) -> None:
                at = pl.ds(pl.multiple_of(place * PASS, PASS), PASS)
                for which in range(3):
                    to = pl.ds(which * shape.list_rows + row + place, 1)
                    new = jnp.logical_or(lane >= begin, place > 0)
                    values = moved[which, number : number + 1, at]
                    out[to, :] = jnp.where(new, values, out[to, :])

            jax.lax.fori_loop(0, pl.cdiv(begin + count, PASS), store, None)
            # Pieces of a tap lie in two rows at most. Later pieces overwrite what follows them.
            row, begin = _divided(piece)
            tap = jnp.broadcast_to(tap_group * TAPS + number, lane.shape)
            to = pl.ds(3 * shape.list_rows + row, 1)
            out[to, :] = jnp.where(lane >= begin, tap, out[to, :])
            out[pl.ds(3 * shape.list_rows + row + 1, 1), :] = tap

    piece, count = found[-1]
    return piece + pl.cdiv(count, PIECE)


def _divided(number: Any) -> tuple[Any, Any]:
    return jax.lax.div(number, jnp.int32(PASS)), jax.lax.rem(number, jnp.int32(PASS))
