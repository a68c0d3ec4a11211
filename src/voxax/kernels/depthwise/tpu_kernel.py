"""The Pallas kernels of depthwise products on TPUs: rows are selected within registers.

``implicit_gemm/tpu_kernel.py`` has the grid over visits and the selection. What follows here is no
matrix product: each channel is multiplied by its own weight (forward, dgrad) or by the tile's
cotangent (wgrad) on the vector unit, in float32. Weights come in all lanes, and sums over rows are
kept lane by lane, so that no value crosses lanes in the loop over visits.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from voxax.kernels.implicit_gemm.tpu_kernel import (
    Step,
    TileConfig,
    Visits,
    call_of_rows,
    call_of_weights,
    channels_of,
)
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE


@functools.partial(jax.jit, static_argnums=0)
def product(
    config: TileConfig, visits: Visits, table: Any, x: Any, w: Any, unvisited: jax.Array
) -> jax.Array:
    """``y[:, m] = sum_k w[:, k] * x[:, table[k, m]]``: ``[C, M]``.

    Args:
      config, visits: see there.
      table: ``int32[K, M]``, input row or -1.
      x: ``int32[C / 2, N]`` whose words are two channels of bfloat16, or ``float32[C, N]``, see
        ``windows.in_windows``; C is a multiple of 16.
      unvisited: the result, as it is in tiles that have no visit; its memory becomes the result's.
    """
    everywhere = jnp.broadcast_to(w.T.reshape(-1, 1), (w.size, WINDOW_TILE))

    def multiply(step: Step, picked: Any, w_ref: Any, channels: int) -> jax.Array:
        del step
        tiles = []
        for lanes in config.tile_lanes:
            y = jnp.zeros((channels, WINDOW_TILE), jnp.float32)
            for begin in range(0, config.taps * channels, channels):
                y = y + _rows(picked, begin, channels, lanes) * w_ref[begin : begin + channels]
            tiles.append(y)
        return jnp.concatenate(tiles, axis=1)

    return call_of_rows(config, visits, multiply, table, x, everywhere, unvisited)


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """``dw[k] = sum_m x[:, table[k, m]] * dy[:, m]``: ``float32[stripes, K * C, WINDOW_TILE]``.

    Stripes and the last axis are to be summed.

    Args: those of :func:`product`; ``dy`` is ``[C, M]``.
    """
    channels = channels_of(x)

    def add(picked: Any, dy_tile: jax.Array, out: Any) -> None:
        cotangent = dy_tile.astype(jnp.float32)
        for begin in range(0, config.taps * channels, channels):
            terms = [
                _rows(picked, begin, channels, lanes) * cotangent[:, lanes]
                for lanes in config.tile_lanes
            ]
            out[0, begin : begin + channels] += sum(terms[1:], terms[0])

    shape = config.taps * channels, WINDOW_TILE
    return call_of_weights(config, visits, add, table, x, dy, shape)


def _rows(picked: Any, begin: int, channels: int, lanes: slice) -> jax.Array:
    """The selected rows of one tap in one tile, ``float32[C, WINDOW_TILE]``."""
    if picked.dtype == jnp.float32:
        return picked[0, begin : begin + channels, lanes]
    words = picked[0, begin // 2 : (begin + channels) // 2, lanes]
    return pltpu.bitcast(words, jnp.bfloat16).astype(jnp.float32)
