"""The Pallas kernels of depthwise products on GPUs, lowered by Triton.

As in ``implicit_gemm/gpu_kernel.py`` a program owns a tile of output rows, which come in the order
of the taps they have, and walks the list of taps that any of them has; or, of wgrad, a part of one
tap's pairs. What follows is no matrix product: each channel is multiplied by its own weight, or by
the cotangent, and added in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from voxax import _compat
from voxax.algorithms.implicit_gemm.gpu_kernel import (
    Tiles,
    call,
    divided,
    index_range,
    part_of_pairs,
    quotient,
)


@dataclasses.dataclass(frozen=True)
class TileConfig:
    """The static side of a call.

    Attributes:
      rows: of a tile (wgrad: pairs of one step).
      channels: of a program.
      splits: parts that the pairs of a tap are cut into.
      warps: threads by 32.
      interpret: run as plain JAX, on any platform.
      stages: how Triton pipelines loops.
    """

    rows: int
    channels: int
    splits: int
    warps: int
    interpret: bool = False
    stages: int = 2


def product(config: TileConfig, tiles: Tiles, x: jax.Array, w: jax.Array, dtype: Any) -> jax.Array:
    """``y[order[m]] = sum_k x[table[k, m]] * w[k]``: ``[rows, C]``.

    Args:
      config: see there.
      tiles: see :class:`voxax.algorithms.implicit_gemm.gpu_kernel.Tiles`.
      x: ``[N, C]``.
      w: ``[K, C]``.
      dtype: of the result.
    """
    rows, channels = tiles.table.shape[1], w.shape[1]
    blocks = pl.cdiv(channels, config.channels)
    order = tiles.table.shape[0] - 1

    def body(table: Any, taps: Any, counts: Any, x_ref: Any, w_ref: Any, out: Any) -> None:
        tile, block = divided(pl.program_id(0), blocks)
        places = tile * config.rows + index_range(config.rows)
        there = places < rows
        own = block * config.channels + index_range(config.channels)
        has = own < channels

        def step(turn: jax.Array, total: jax.Array) -> jax.Array:
            tap = taps[tile, turn]
            sources = plgpu.load(table.at[tap, places], mask=there, other=-1)
            picked = plgpu.load(
                x_ref.at[sources[:, None], own[None, :]],
                mask=(sources >= 0)[:, None] & has[None, :],
                other=0.0,
            )
            weight = plgpu.load(w_ref.at[tap, own], mask=has, other=0.0)
            return total + picked.astype(jnp.float32) * weight.astype(jnp.float32)[None, :]

        zero = jnp.zeros((config.rows, config.channels), jnp.float32)
        total = jax.lax.fori_loop(jnp.int32(0), counts[tile], step, zero)
        # Where there is no row: places of their own, since masked writes must not meet others.
        target = plgpu.load(table.at[order, places], mask=there, other=0)
        target = jnp.where(there, target, places)
        plgpu.store(
            out.at[target[:, None], own[None, :]],
            total.astype(out.dtype),
            mask=there[:, None] & has[None, :],
        )

    grid = (blocks * len(tiles.counts),)
    out = _compat.shape_like((rows, channels), dtype, x)
    return call(config, body, grid, out, tiles.table, tiles.taps, tiles.counts, x, w)


def weight_product(
    config: TileConfig, pairs: jax.Array, starts: jax.Array, x: jax.Array, dy: jax.Array
) -> jax.Array:
    """``dw[k] = sum_p x[pairs[0, p]] * dy[pairs[1, p]]``: ``float32[splits, K, C]``, to be added.

    Args:
      config: see there.
      pairs, starts: see :func:`voxax.geometry.kernel_map.list_pairs`.
      x, dy: ``[N, C]`` and ``[M, C]``.
    """
    taps, channels = len(starts) - 1, x.shape[1]
    blocks = pl.cdiv(channels, config.channels)

    def body(pairs_ref: Any, starts_ref: Any, x_ref: Any, dy_ref: Any, out: Any) -> None:
        rest, block = divided(pl.program_id(0), blocks)
        split, tap = divided(rest, taps)
        own = block * config.channels + index_range(config.channels)
        has = own < channels
        begin, end = part_of_pairs(config, starts_ref, tap, split)

        def step(turn: jax.Array, total: jax.Array) -> jax.Array:
            places = begin + turn * config.rows + index_range(config.rows)
            there = places < end
            mask = there[:, None] & has[None, :]
            sources = plgpu.load(pairs_ref.at[0, places], mask=there, other=0)
            targets = plgpu.load(pairs_ref.at[1, places], mask=there, other=0)
            picked = plgpu.load(x_ref.at[sources[:, None], own[None, :]], mask=mask, other=0.0)
            slopes = plgpu.load(dy_ref.at[targets[:, None], own[None, :]], mask=mask, other=0.0)
            return total + picked.astype(jnp.float32) * slopes.astype(jnp.float32)

        zero = jnp.zeros((config.rows, config.channels), jnp.float32)
        steps = quotient(end - begin + (config.rows - 1), config.rows)
        total = jax.lax.fori_loop(jnp.int32(0), steps, step, zero)
        plgpu.store(out.at[split, tap, own], jnp.sum(total, axis=0), mask=has)

    grid = (blocks * taps * config.splits,)
    out = _compat.shape_like((config.splits, taps, channels), jnp.float32, x)
    return call(config, body, grid, out, pairs, starts, x, dy)
