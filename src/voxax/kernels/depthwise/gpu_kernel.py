"""The Triton kernels of depthwise products on GPUs, which need the Triton package.

As in ``implicit_gemm/gpu_kernel.py``, a program computes a tile of output rows, which are sorted by
the taps that they have, and walks the list of taps that any row of the tile has. In wgrad, a
program adds a part of one tap's (input row, output row) pairs. Each channel is multiplied by its
own weight (wgrad: by the output's gradient in this channel), and added in float32.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from voxax.kernels.implicit_gemm.gpu_kernel import offset_dtype
from voxax.kernels.implicit_gemm.tap_order import Tiles
from voxax.kernels.triton_call import Launch, call


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """Static sizes of a kernel call.

    Attributes:
      rows: number of rows of a tile (wgrad: number of pairs of a step).
      channels: number of channels of a program.
      splits: number of parts into which the pairs of a tap are split (wgrad only).
      launch: how the kernel is compiled and run.
    """

    rows: int
    channels: int
    splits: int
    launch: Launch


# Triton's interpreter finds this function only as an argument of ``tl.reduce``.
@triton.jit
def _added(a, b):
    return a + b


# Triton pipelines loops without a matrix product only if ``num_stages`` is given.
@triton.jit
def forward_kernel(
    table,
    taps,
    x,
    w,
    rows,
    out,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    REVERSED: tl.constexpr,
    STAGES: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Compute one tile and block of channels of the result of :func:`product`, written to ``out``.

    :func:`product` passes all arguments. ``rows`` is the number of output rows, ROWS that of a
    tile, BLOCK the number of channels of a block, OFFSET the dtype of array indices.
    """
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    tile = tl.program_id(0) // blocks
    own = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    has = own < CHANNELS
    places = tile * ROWS + tl.arange(0, ROWS)
    there = places < rows

    own_taps = taps + tile * (TAPS + 1)
    number = tl.load(own_taps + TAPS)
    total = tl.full((ROWS, BLOCK), 0.0, tl.float32)
    # Walk only the taps that some row of the tile has.
    for step in tl.range(0, number, num_stages=STAGES):
        tap = tl.load(own_taps + step).to(OFFSET)
        sources = tl.load(table + tap * rows + places, mask=there, other=-1)
        at = x + (sources.to(OFFSET) * CHANNELS)[:, None] + own[None, :]
        picked = tl.load(at, mask=(sources >= 0)[:, None] & has[None, :], other=0.0)
        if REVERSED:
            tap = TAPS - 1 - tap
        weight = tl.load(w + tap * CHANNELS + own, mask=has, other=0.0)
        total += picked.to(tl.float32) * weight.to(tl.float32)[None, :]

    # The last row of the sorted table has the output row of each place.
    targets = tl.load(table + tl.full((), TAPS, OFFSET) * rows + places, mask=there, other=0)
    at = out + (targets.to(OFFSET) * CHANNELS)[:, None] + own[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=there[:, None] & has[None, :])


@triton.jit
def weight_kernel(
    pairs,
    starts,
    x,
    dy,
    room,
    out,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Compute one part of the result of :func:`weight_product`, and write it to ``out``.

    The part is a block of channels of one tap, summed over some of its pairs.

    :func:`weight_product` passes all arguments. PAIRS is the number of pairs of a step, BLOCK that
    of channels of a block, ``room`` that of columns of ``pairs``. OFFSET is the dtype of array
    indices.
    """
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    own = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    has = own < CHANNELS
    split = tl.program_id(0) // blocks % SPLITS
    # The center tap, which has the most pairs, starts first.
    tap = (tl.program_id(0) // (blocks * SPLITS) + TAPS // 2) % TAPS
    begin = tl.load(starts + tap)
    end = tl.load(starts + tap + 1)
    # Every part but the last has whole steps of pairs.
    share = ((end - begin + PAIRS - 1) // PAIRS + SPLITS - 1) // SPLITS * PAIRS
    begin = tl.minimum(begin + split * share, end)
    end = tl.minimum(begin + share, end)
    places = begin + tl.arange(0, PAIRS)
    sources = tl.load(pairs + places, mask=places < end, other=0)
    targets = tl.load(pairs + room + places, mask=places < end, other=0)
    # Keep a sum for each place of a step. The places are added once, after the last step.
    total = tl.full((PAIRS, BLOCK), 0.0, tl.float32)
    for step in tl.range(0, (end - begin + PAIRS - 1) // PAIRS, num_stages=STAGES):
        mask = (places < end)[:, None] & has[None, :]
        at_x = x + (sources.to(OFFSET) * CHANNELS)[:, None] + own[None, :]
        at_dy = dy + (targets.to(OFFSET) * CHANNELS)[:, None] + own[None, :]
        picked = tl.load(at_x, mask=mask, other=0.0)
        slopes = tl.load(at_dy, mask=mask, other=0.0)
        total += picked.to(tl.float32) * slopes.to(tl.float32)
        # Read the pairs of the next step now, so that its rows can be fetched ahead.
        places = begin + (step + 1) * PAIRS + tl.arange(0, PAIRS)
        sources = tl.load(pairs + places, mask=places < end, other=0)
        targets = tl.load(pairs + room + places, mask=places < end, other=0)
    tl.store(out + (split * TAPS + tap) * CHANNELS + own, tl.reduce(total, 0, _added), mask=has)


def product(
    config: TileConfig, tiles: Tiles, x: jax.Array, w: jax.Array, dtype: Any, *, reverse: bool
) -> jax.Array:
    """Run forward or dgrad: return ``y[order[m]] = sum_k x[table[k, m]] * w[k]``, ``[M, C]``.

    Args:
      config: sizes of the call.
      tiles: the sorted neighbor ``table``, whose last row is ``order``, and the taps of each tile.
      x: ``[N, C]``, the input features (dgrad: the output's gradients).
      w: ``[K, C]``, the weight.
      dtype: dtype of the result.
      reverse: whether the taps of ``w`` are in reverse order.
    """
    rows, (taps, channels) = tiles.table.shape[1], w.shape
    out = jax.ShapeDtypeStruct((rows, channels), dtype)
    constants = {
        "TAPS": taps,
        "CHANNELS": channels,
        "ROWS": config.rows,
        "BLOCK": config.channels,
        "REVERSED": reverse,
        "STAGES": config.launch.stages,
        "OFFSET": offset_dtype(tiles.table, x, out),
    }
    programs = -(-channels // config.channels) * len(tiles.taps)
    operands = tiles.table, tiles.taps, x, w
    return call(forward_kernel, config.launch, programs, out, operands, (rows,), constants)


def weight_product(
    config: TileConfig, pairs: jax.Array, starts: jax.Array, x: jax.Array, dy: jax.Array
) -> jax.Array:
    """Run wgrad: ``dw[k] = sum_p x[pairs[0, p]] * dy[pairs[1, p]]`` over the pairs p of tap k.

    The result is ``float32[splits, K, C]``. The caller has to add the ``config.splits`` parts.

    Args:
      config: sizes of the call.
      pairs: ``int32[2, ...]``, the input row and the output row of each pair, tap after tap.
      starts: ``int32[K + 1]``, the index of each tap's first pair, then the number of pairs.
      x, dy: ``[N, C]`` and ``[M, C]``, the input features and the output's gradients.
    """
    taps, channels = len(starts) - 1, x.shape[1]
    out = jax.ShapeDtypeStruct((config.splits, taps, channels), jnp.float32)
    constants = {
        "TAPS": taps,
        "CHANNELS": channels,
        "PAIRS": config.rows,
        "BLOCK": config.channels,
        "SPLITS": config.splits,
        "STAGES": config.launch.stages,
        "OFFSET": offset_dtype(x, dy),
    }
    programs = -(-channels // config.channels) * config.splits * taps
    operands, sizes = (pairs, starts, x, dy), (pairs.shape[1],)
    return call(weight_kernel, config.launch, programs, out, operands, sizes, constants)
