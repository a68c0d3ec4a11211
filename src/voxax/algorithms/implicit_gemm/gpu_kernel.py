"""The Pallas kernels of ``implicit_gemm`` on GPUs, lowered by Triton.

*Forward and dgrad.* A program owns a tile of output rows and a block of output channels. The rows
come in the order of the taps they have (``tap_order.py``), and each tile has a list
of the taps that any of its rows has: the program walks that list, and for each tap and block of
input channels loads rows of features by the neighbor table, multiplies them with the tap's weight
and adds in float32. Rows without that neighbor are masked: nothing is read for them. Each output
row belongs to one program, so it is written once.

*wgrad.* A program owns a block of one tap's weight and a part of the tap's pairs. Parts are added
afterwards, in order, by XLA. Nothing is added by atomics anywhere: runs repeat bit for bit.

Triton wants blocks whose sizes are powers of two, 16 at least in products; what is behind the last
channel or row is masked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from voxax import _compat


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The static side of a call.

    Attributes:
      rows: of a tile (wgrad: pairs of one step).
      in_block, out_block: channels of a step, of the operand that is gathered and of the other.
      splits: parts that a sum is cut into: the taps of a tile, or the pairs of a tap.
      stages, warps: how Triton pipelines loops, and threads by 32.
      precision: of the products of float32.
      interpret: run as plain JAX, on any platform.
    """

    rows: int
    in_block: int
    out_block: int
    splits: int
    stages: int
    warps: int
    precision: jax.lax.Precision
    interpret: bool = False


@dataclasses.dataclass(frozen=True)
class Tiles:
    """The taps of each tile of rows.

    Attributes:
      table: ``int32[K + 1, rows]``, see ``tap_order.sort_by_taps``.
      taps: ``int32[tiles, K]``: first the taps that any row of a tile has.
      counts: ``int32[tiles]``: the number of these taps.
    """

    table: jax.Array
    taps: jax.Array
    counts: jax.Array


def tiles_of(table: jax.Array, rows: int) -> Tiles:
    """Tiles of so many rows of a sorted table."""
    number, places = table.shape[0] - 1, table.shape[1]
    tiles = -(-places // rows)
    fill = ((0, 0), (0, tiles * rows - places))
    padded = jnp.pad(table[:number], fill, constant_values=-1).reshape(number, tiles, rows)
    upto = jnp.cumsum(jnp.any(padded >= 0, axis=2), axis=0, dtype=jnp.int32).T
    # The n-th tap that is there comes behind all those up to which n or fewer are.
    wanted = jnp.arange(number, dtype=jnp.int32)[None, :, None]
    taps = jnp.sum(upto[:, None, :] <= wanted, axis=2, dtype=jnp.int32)
    return Tiles(table, taps, upto[:, -1])


def product(config: TileConfig, tiles: Tiles, x: jax.Array, w: jax.Array, dtype: Any) -> jax.Array:
    """``y[order[m]] = sum_k x[table[k, m]] @ w[k]``.

    Args:
      config, tiles: see there.
      x: ``[N, G * C_in]``.
      w: ``[K, G, C_in, C_out]``, in the same dtype.
      dtype: of the result.

    Returns:
      ``[splits, rows, G * C_out]``, to be added up.
    """
    (rows, (_, groups, c_in, c_out)) = tiles.table.shape[1], w.shape
    in_blocks, out_blocks = pl.cdiv(c_in, config.in_block), pl.cdiv(c_out, config.out_block)
    columns = groups * out_blocks
    order = tiles.table.shape[0] - 1

    def body(table: Any, taps: Any, counts: Any, x_ref: Any, w_ref: Any, out: Any) -> None:
        rest, column = divided(pl.program_id(0), columns)
        split, tile = divided(rest, len(tiles.counts))
        group, block = divided(column, out_blocks)
        places = tile * config.rows + index_range(config.rows)
        there = places < rows
        outs = block * config.out_block + index_range(config.out_block)
        has_out = outs < c_out

        share = quotient(counts[tile] + (config.splits - 1), config.splits)
        first = split * share
        number = jnp.maximum(jnp.minimum(share, counts[tile] - first), 0)

        def step(turn: jax.Array, total: jax.Array) -> jax.Array:
            which, part = divided(turn, in_blocks)
            tap = taps[tile, first + which]
            sources = plgpu.load(table.at[tap, places], mask=there, other=-1)
            ins = part * config.in_block + index_range(config.in_block)
            has_in = ins < c_in
            picked = plgpu.load(
                x_ref.at[sources[:, None], group * c_in + ins[None, :]],
                mask=(sources >= 0)[:, None] & has_in[None, :],
                other=0.0,
            )
            weight = plgpu.load(
                w_ref.at[tap, group, ins[:, None], outs[None, :]],
                mask=has_in[:, None] & has_out[None, :],
                other=0.0,
            )
            return total + _dot(config, picked, weight, 1)

        zero = jnp.zeros((config.rows, config.out_block), jnp.float32)
        total = jax.lax.fori_loop(jnp.int32(0), number * in_blocks, step, zero)
        # Where there is no row: places of their own, since masked writes must not meet others.
        target = plgpu.load(table.at[order, places], mask=there, other=0)
        target = jnp.where(there, target, places)
        plgpu.store(
            out.at[split, target[:, None], group * c_out + outs[None, :]],
            total.astype(out.dtype),
            mask=there[:, None] & has_out[None, :],
        )

    shape = (config.splits, rows, groups * c_out)
    grid = (columns * len(tiles.counts) * config.splits,)
    operands = tiles.table, tiles.taps, tiles.counts, x, w
    return call(config, body, grid, _compat.shape_like(shape, dtype, x), *operands)


def weight_product(
    config: TileConfig,
    pairs: jax.Array,
    starts: jax.Array,
    x: jax.Array,
    dy: jax.Array,
    groups: int,
) -> jax.Array:
    """``dw[k] = sum_p x[pairs[0, p]]^T dy[pairs[1, p]]`` over the pairs of each tap.

    Args:
      config: see there.
      pairs, starts: see :func:`voxax.geometry.kernel_map.list_pairs`.
      x, dy: ``[N, G * C_in]`` and ``[M, G * C_out]``.
      groups: G.

    Returns:
      ``float32[splits, K, G, C_in, C_out]``, to be added up.
    """
    taps, c_in, c_out = len(starts) - 1, x.shape[1] // groups, dy.shape[1] // groups
    in_blocks, out_blocks = pl.cdiv(c_in, config.in_block), pl.cdiv(c_out, config.out_block)

    def body(pairs_ref: Any, starts_ref: Any, x_ref: Any, dy_ref: Any, out: Any) -> None:
        rest, column = divided(pl.program_id(0), groups * in_blocks * out_blocks)
        split, tap = divided(rest, taps)
        group, block = divided(column, in_blocks * out_blocks)
        in_place, out_place = divided(block, out_blocks)
        ins = in_place * config.in_block + index_range(config.in_block)
        outs = out_place * config.out_block + index_range(config.out_block)
        has_in, has_out = ins < c_in, outs < c_out
        begin, end = part_of_pairs(config, starts_ref, tap, split)

        def step(turn: jax.Array, total: jax.Array) -> jax.Array:
            places = begin + turn * config.rows + index_range(config.rows)
            there = places < end
            sources = plgpu.load(pairs_ref.at[0, places], mask=there, other=0)
            targets = plgpu.load(pairs_ref.at[1, places], mask=there, other=0)
            picked = plgpu.load(
                x_ref.at[sources[:, None], group * c_in + ins[None, :]],
                mask=there[:, None] & has_in[None, :],
                other=0.0,
            )
            slopes = plgpu.load(
                dy_ref.at[targets[:, None], group * c_out + outs[None, :]],
                mask=there[:, None] & has_out[None, :],
                other=0.0,
            )
            return total + _dot(config, picked, slopes, 0)

        zero = jnp.zeros((config.in_block, config.out_block), jnp.float32)
        steps = quotient(end - begin + (config.rows - 1), config.rows)
        total = jax.lax.fori_loop(jnp.int32(0), steps, step, zero)
        plgpu.store(
            out.at[split, tap, group, ins[:, None], outs[None, :]],
            total,
            mask=has_in[:, None] & has_out[None, :],
        )

    shape = (config.splits, taps, groups, c_in, c_out)
    grid = (groups * in_blocks * out_blocks * taps * config.splits,)
    out = _compat.shape_like(shape, jnp.float32, x)
    return call(config, body, grid, out, pairs, starts, x, dy)


def part_of_pairs(config: Any, starts: Any, tap: Any, split: Any) -> tuple[jax.Array, jax.Array]:
    """``(begin, end)``: the pairs of one tap that one part of ``config.splits`` adds up.

    Every part but the last has whole steps of ``config.rows`` pairs.
    """
    begin, end = starts[tap], starts[tap + 1]
    steps = quotient(end - begin + (config.rows - 1), config.rows)
    share = quotient(steps + (config.splits - 1), config.splits) * config.rows
    first = jnp.minimum(begin + split * share, end)
    return first, jnp.minimum(first + share, end)


def call(config: Any, body: Any, grid: tuple[int, ...], out: Any, *operands: Any) -> jax.Array:
    """Operands stay in global memory, and the functions load their own parts.

    One axis: CUDA allows 2^31 programs along the first, 65,535 along the others.
    """
    return pl.pallas_call(
        body,
        grid=grid,
        out_shape=out,
        compiler_params=plgpu.CompilerParams(num_warps=config.warps, num_stages=config.stages),
        interpret=config.interpret,
    )(*operands)


def _dot(config: TileConfig, a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """The product over this axis of ``a`` and the first of ``b``, in float32."""
    return jax.lax.dot_general(
        a,
        b,
        (((axis,), (0,)), ((), ())),
        precision=config.precision,
        preferred_element_type=jnp.float32,
    )


def index_range(size: int) -> jax.Array:
    """``int32[size]``: 0 to size - 1."""
    return jax.lax.iota(jnp.int32, size)


def quotient(number: Any, divisor: int) -> jax.Array:
    """Divide integers that are not negative: one instruction, Python's rounding takes several."""
    return jax.lax.div(number, jnp.int32(divisor))


def divided(number: Any, divisor: int) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of the same."""
    return quotient(number, divisor), jax.lax.rem(number, jnp.int32(divisor))
