"""The Triton kernels of ``implicit_gemm`` on GPUs, which need the Triton package.

*Forward and dgrad.* A program computes a tile of output rows and a block of output channels. The
rows are sorted by the taps that they have (``tap_order.py``), and each tile has a list of the taps
that any of its rows has. For each tap in the list and each block of input channels, the program
loads rows of features by the neighbor table, multiplies them with the tap's weight, and adds in
float32. Missing neighbors are masked, so nothing is read for them.

*wgrad.* A program computes a block of one tap's weight from a part of the tap's pairs. XLA adds the
parts afterwards, in order. There are no atomic additions, so results are bitwise reproducible.

*Pipelining.* Triton copies the operands of the next ``stages`` passes of a loop into shared memory
ahead of time. It divides the stages among loads that depend on each other. If a pass read the table
and then the rows that the table names, the rows would get only half of the stages. Therefore each
pass reads the table for the next pass into registers, and the rows get all stages.

Triton requires block sizes that are powers of two, and at least 16 in products. Rows and channels
of a block that do not exist are masked.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from voxax.kernels.implicit_gemm.tap_order import Tiles
from voxax.kernels.kernel import Epilogue
from voxax.kernels.triton_call import Launch, call


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """Static sizes of a kernel call.

    Attributes:
      rows: number of rows of a tile (wgrad: number of pairs of a step).
      in_block, out_block: number of input and of output channels of a step.
      splits: number of programs that share a sum over the taps of a tile (wgrad: over the pairs of
        a tap).
      launch: how the kernel is compiled and run.
      precision: ``input_precision`` of ``tl.dot``.
    """

    rows: int
    in_block: int
    out_block: int
    splits: int
    launch: Launch
    precision: str


# Loops call no other functions, because Triton's interpreter would not find them.
@triton.jit
def forward_kernel(
    table,
    taps,
    x,
    w,
    valid,
    mean,
    variance,
    scale,
    shift,
    bias,
    residual,
    rows,
    out,
    TAPS: tl.constexpr,
    GROUPS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    ROWS: tl.constexpr,
    IN_BLOCK: tl.constexpr,
    OUT_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    REVERSED: tl.constexpr,
    EPSILON: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Compute one tile and block of channels of the result of :func:`product`, written to ``out``.

    :func:`product` passes all arguments. ``rows`` is the number of output rows, ROWS that of a
    tile. IN and OUT are numbers of channels of a group. OFFSET is the dtype of array indices.
    Without an epilogue, the arrays from ``valid`` to ``residual`` are None.
    """
    in_blocks: tl.constexpr = (IN + IN_BLOCK - 1) // IN_BLOCK
    out_blocks: tl.constexpr = (OUT + OUT_BLOCK - 1) // OUT_BLOCK
    # Programs are numbered by tile, part, group and block of output channels, the last fastest.
    column = tl.program_id(0) % (GROUPS * out_blocks)
    split = tl.program_id(0) // (GROUPS * out_blocks) % SPLITS
    tile = tl.program_id(0) // (GROUPS * out_blocks * SPLITS)
    group = column // out_blocks
    outs = column % out_blocks * OUT_BLOCK + tl.arange(0, OUT_BLOCK)
    places = tile * ROWS + tl.arange(0, ROWS)
    there = places < rows

    # A part has ``share`` of the listed taps, from ``first`` on. The last parts may have fewer.
    own_taps = taps + tile * (TAPS + 1)
    listed = tl.load(own_taps + TAPS)
    share = (listed + SPLITS - 1) // SPLITS
    first = split * share
    number = tl.maximum(tl.minimum(share, listed - first), 0)
    own_taps += first
    tap = tl.load(own_taps, mask=number > 0, other=0).to(OFFSET)
    some = places < rows * tl.minimum(number, 1)
    sources = tl.load(table + tap * rows + places, mask=some, other=-1)
    total = tl.full((ROWS, OUT_BLOCK), 0.0, tl.float32)
    # A step multiplies one tap and one block of input channels.
    for step in range(number * in_blocks):
        ins = step % in_blocks * IN_BLOCK + tl.arange(0, IN_BLOCK)
        wanted = (sources >= 0)[:, None]
        if IN % IN_BLOCK != 0:
            wanted = wanted & (ins < IN)[None, :]
        start = (sources.to(OFFSET) * GROUPS + group) * IN
        picked = tl.load(x + start[:, None] + ins[None, :], mask=wanted, other=0.0)
        if REVERSED:
            tap = TAPS - 1 - tap
        begin = w + (tap * GROUPS + group) * (IN * OUT)
        # dX = dY W^T reads the weight of forward with its sides exchanged.
        if TRANSPOSED:
            of_tap = begin + outs[None, :] * IN + ins[:, None]
        else:
            of_tap = begin + ins[:, None] * OUT + outs[None, :]
        if IN % IN_BLOCK != 0 or OUT % OUT_BLOCK != 0:
            there_too = (ins < IN)[:, None] & (outs < OUT)[None, :]
            weight = tl.load(of_tap, mask=there_too, other=0.0)
        else:
            weight = tl.load(of_tap)
        total = tl.dot(picked, weight, total, input_precision=PRECISION)
        # Read the table for the next step now. The last step reads its own tap again.
        following = tl.minimum((step + 1) // in_blocks, number - 1)
        tap = tl.load(own_taps + following).to(OFFSET)
        sources = tl.load(table + tap * rows + places, mask=there, other=-1)

    # The last row of the sorted table has the output row of each place.
    targets = tl.load(table + tl.full((), TAPS, OFFSET) * rows + places, mask=there, other=0)
    written = there[:, None]
    if OUT % OUT_BLOCK != 0:
        written = written & (outs < OUT)[None, :]
    target = (tl.full((), 0, OFFSET) + split) * rows + targets
    if valid is None:
        at = out + (target * GROUPS + group)[:, None] * OUT + outs[None, :]
        tl.store(at, total.to(out.dtype.element_ty), mask=written)
    else:
        voxels = tl.load(valid + targets, mask=there, other=0) != 0
        # Cut the channels into pieces, so that a thread needs few registers for their parameters.
        pieces: tl.constexpr = 4 if OUT_BLOCK >= 128 else OUT_BLOCK // 32 if OUT_BLOCK > 32 else 1
        width: tl.constexpr = OUT_BLOCK // pieces
        if pieces == 4:
            parts = tl.permute(tl.reshape(total, (ROWS, 2, 2, width)), (0, 3, 1, 2))
            even, odd = tl.split(parts)
            first, third = tl.split(even)
            second, fourth = tl.split(odd)
            parts = (first, second, third, fourth)
        elif pieces == 2:
            parts = tl.split(tl.permute(tl.reshape(total, (ROWS, 2, width)), (0, 2, 1)))
        else:
            parts = (total,)
        for piece in tl.static_range(pieces):
            own = column % out_blocks * OUT_BLOCK + piece * width + tl.arange(0, width)
            channels, inside = group * OUT + own, own < OUT
            spread = tl.load(variance + channels, mask=inside, other=1.0).to(tl.float32)
            # (y + bias - mean) / sqrt(variance + epsilon) * scale + shift
            # = (y - center) * factor + constant
            factor = tl.load(scale + channels, mask=inside, other=0.0).to(tl.float32)
            factor = tl.div_rn(factor, tl.sqrt_rn(spread + EPSILON))
            center = tl.load(mean + channels, mask=inside, other=0.0).to(tl.float32)
            if bias is not None:
                center -= tl.load(bias + channels, mask=inside, other=0.0).to(tl.float32)
            constant = tl.load(shift + channels, mask=inside, other=0.0).to(tl.float32)
            result = (parts[piece] - center[None, :]) * factor[None, :] + constant[None, :]
            kept = there[:, None] & inside[None, :]
            place = (targets.to(OFFSET) * GROUPS + group)[:, None] * OUT + own[None, :]
            if residual is not None:
                result += tl.load(residual + place, mask=kept, other=0.0).to(tl.float32)
            if RELU:
                result = tl.where(result < 0.0, 0.0, result)  # NaN stays
            result = tl.where(voxels[:, None], result, 0.0)
            tl.store(out + place, result.to(out.dtype.element_ty), mask=kept)


@triton.jit
def weight_kernel(
    pairs,
    starts,
    x,
    dy,
    room,
    out,
    TAPS: tl.constexpr,
    GROUPS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PAIRS: tl.constexpr,
    IN_BLOCK: tl.constexpr,
    OUT_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Compute one part of the result of :func:`weight_product`, and write it to ``out``.

    The part is a block of input and output channels of one tap, summed over some of its pairs.

    :func:`weight_product` passes all arguments. PAIRS is the number of pairs of a step, ``room``
    that of columns of ``pairs``. IN and OUT are numbers of channels of a group. OFFSET is the dtype
    of array indices.
    """
    in_blocks: tl.constexpr = (IN + IN_BLOCK - 1) // IN_BLOCK
    out_blocks: tl.constexpr = (OUT + OUT_BLOCK - 1) // OUT_BLOCK
    column = tl.program_id(0) % (GROUPS * in_blocks * out_blocks)
    split = tl.program_id(0) // (GROUPS * in_blocks * out_blocks) % SPLITS
    # The center tap, which has the most pairs, starts first.
    tap = (tl.program_id(0) // (GROUPS * in_blocks * out_blocks * SPLITS) + TAPS // 2) % TAPS
    group = column // (in_blocks * out_blocks)
    ins = column // out_blocks % in_blocks * IN_BLOCK + tl.arange(0, IN_BLOCK)
    outs = column % out_blocks * OUT_BLOCK + tl.arange(0, OUT_BLOCK)

    begin = tl.load(starts + tap)
    end = tl.load(starts + tap + 1)
    # Every part but the last has whole steps of pairs.
    share = ((end - begin + PAIRS - 1) // PAIRS + SPLITS - 1) // SPLITS * PAIRS
    begin = tl.minimum(begin + split * share, end)
    end = tl.minimum(begin + share, end)
    places = begin + tl.arange(0, PAIRS)
    sources = tl.load(pairs + places, mask=places < end, other=0)
    targets = tl.load(pairs + room + places, mask=places < end, other=0)
    total = tl.full((IN_BLOCK, OUT_BLOCK), 0.0, tl.float32)
    for step in range((end - begin + PAIRS - 1) // PAIRS):
        there = places < end
        at_x = x + ((sources.to(OFFSET) * GROUPS + group) * IN)[:, None] + ins[None, :]
        at_dy = dy + ((targets.to(OFFSET) * GROUPS + group) * OUT)[:, None] + outs[None, :]
        in_mask = there[:, None]
        if IN % IN_BLOCK != 0:
            in_mask = in_mask & (ins < IN)[None, :]
        out_mask = there[:, None]
        if OUT % OUT_BLOCK != 0:
            out_mask = out_mask & (outs < OUT)[None, :]
        picked = tl.load(at_x, mask=in_mask, other=0.0)
        slopes = tl.load(at_dy, mask=out_mask, other=0.0)
        # dw += x^T dy over the pairs of this step; then read the pairs of the next step.
        total = tl.dot(tl.trans(picked), slopes, total, input_precision=PRECISION)
        places = begin + (step + 1) * PAIRS + tl.arange(0, PAIRS)
        sources = tl.load(pairs + places, mask=places < end, other=0)
        targets = tl.load(pairs + room + places, mask=places < end, other=0)

    part = (tl.full((), 0, OFFSET) + split) * TAPS + tap
    at = out + ((part * GROUPS + group) * IN + ins)[:, None] * OUT + outs[None, :]
    tl.store(at, total, mask=(ins < IN)[:, None] & (outs < OUT)[None, :])


def product(
    config: TileConfig,
    tiles: Tiles,
    x: jax.Array,
    w: jax.Array,
    dtype: Any,
    *,
    transposed: bool = False,
    reverse: bool = False,
    epilogue: Epilogue | None = None,
) -> jax.Array:
    """Run forward or dgrad: ``y[order[m]] = sum_k x[table[k, m]] @ w[k]``, in ``splits`` parts.

    Args:
      config: sizes of the call.
      tiles: the sorted neighbor ``table``, whose last row is ``order``, and the taps of each tile.
      x: ``[N, G * C_in]`` for G groups.
      w: ``[K, G, C_in, C_out]``, in the same dtype; ``[K, G, C_out, C_in]`` if ``transposed``.
      dtype: dtype of the result.
      transposed: whether the last two axes of ``w`` are exchanged.
      reverse: whether the taps of ``w`` are in reverse order.
      epilogue: operations applied before the result is rounded, or None; requires ``splits=1``.

    Returns:
      ``[splits, M, G * C_out]`` for M output rows. The sum over ``splits`` is left to the caller.
    """
    taps, groups, *sides = w.shape
    c_in, c_out = sides[::-1] if transposed else sides
    rows = tiles.table.shape[1]
    out = jax.ShapeDtypeStruct((config.splits, rows, groups * c_out), dtype)
    constants = {
        **_constants(config, groups, c_in, c_out, tiles.table, x, w, out),
        "TAPS": taps,
        "ROWS": config.rows,
        "TRANSPOSED": transposed,
        "REVERSED": reverse,
        "EPSILON": epilogue.epsilon if epilogue else 0.0,
        "RELU": epilogue.relu if epilogue else False,
    }
    programs = groups * -(-c_out // config.out_block) * config.splits * len(tiles.taps)
    after = {name: getattr(epilogue, name, None) for name in _OF_EPILOGUE}
    constants |= {name: None for name, array in after.items() if array is None}
    given = (array for array in after.values() if array is not None)
    operands = tiles.table, tiles.taps, x, w, *given
    return call(forward_kernel, config.launch, programs, out, operands, (rows,), constants)


# The order of the kernel's parameters.
_OF_EPILOGUE = ("valid", "mean", "variance", "scale", "shift", "bias", "residual")


def weight_product(
    config: TileConfig,
    pairs: jax.Array,
    starts: jax.Array,
    x: jax.Array,
    dy: jax.Array,
    groups: int,
) -> jax.Array:
    """Run wgrad: ``dw[k] = sum_p x[pairs[0, p]]^T dy[pairs[1, p]]`` over the pairs p of tap k.

    Args:
      config: sizes of the call.
      pairs: ``int32[2, ...]``, the input row and the output row of each pair, tap after tap.
      starts: ``int32[K + 1]``, the index of each tap's first pair, then the number of pairs.
      x, dy: ``[N, G * C_in]`` and ``[M, G * C_out]``.
      groups: number of groups, G.

    Returns:
      ``float32[splits, K, G, C_in, C_out]``. The sum over ``splits`` is left to the caller.
    """
    taps, c_in, c_out = len(starts) - 1, x.shape[1] // groups, dy.shape[1] // groups
    out = jax.ShapeDtypeStruct((config.splits, taps, groups, c_in, c_out), jnp.float32)
    constants = {
        **_constants(config, groups, c_in, c_out, x, dy, out),
        "TAPS": taps,
        "PAIRS": config.rows,
    }
    sides = -(-c_in // config.in_block) * -(-c_out // config.out_block)
    programs = groups * sides * config.splits * taps
    operands, sizes = (pairs, starts, x, dy), (pairs.shape[1],)
    return call(weight_kernel, config.launch, programs, out, operands, sizes, constants)


def _constants(config: TileConfig, groups: int, c_in: int, c_out: int, *arrays: Any) -> dict:
    """Return the compile-time constants that forward_kernel and weight_kernel share, by name.

    ``c_in`` and ``c_out`` are the channels of one group. ``arrays`` are the arrays that the kernel
    indexes; the largest determines whether indices have 32 or 64 bits.
    """
    return {
        "GROUPS": groups,
        "IN": c_in,
        "OUT": c_out,
        "IN_BLOCK": config.in_block,
        "OUT_BLOCK": config.out_block,
        "SPLITS": config.splits,
        "PRECISION": config.precision,
        "OFFSET": offset_dtype(*arrays),
    }


def offset_dtype(*arrays: Any) -> Any:
    """Return the integer dtype that can index all elements of these arrays."""
    return tl.int64 if any(a.size >= 2**31 for a in arrays) else tl.int32
