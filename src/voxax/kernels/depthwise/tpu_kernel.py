"""The Pallas kernels of depthwise products on TPUs: they multiply on the vector unit.

``implicit_gemm/tpu_kernel.py`` defines the grid over visits and the selection of rows. Here each
channel is multiplied by its own weight (forward, dgrad) or by the tile's cotangent (wgrad), in
float32. Each weight is copied to all lanes, and wgrad keeps a sum for each lane, so that no value
crosses lanes in the loop over visits.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from voxax.kernels.implicit_gemm.tpu_kernel import (
    TileConfig,
    Visits,
    call_of_gradients,
    call_of_rows,
    call_of_weights,
    channels_of,
)
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE


@functools.partial(jax.jit, static_argnums=0)
def product(config: TileConfig, visits: Visits, table: Any, x: Any, w: Any) -> jax.Array:
    """Run forward or dgrad: return ``y[:, m] = sum_k w[:, k] * x[:, table[k, m]]``, ``[C, M]``.

    Values of a tile that no visit covers are undefined.

    Args:
      config: sizes of the call.
      visits: the steps of the kernel: each is some tiles of output rows and windows of input rows.
      table: ``int32[K, M]``, the input row that each output row reads by each tap, or -1 for none.
      x: ``int32[C / 2, N]``, where each word contains two channels of bfloat16, or
        ``float32[C, N]``; see ``windows.in_windows``. C is a multiple of 16.
      w: ``float32[C, K]``.
    """
    multiply = functools.partial(_times_weights, config)
    return call_of_rows(config, visits, multiply, table, x, _everywhere(w), w.shape[0])


@functools.partial(jax.jit, static_argnums=0)
def weight_product(config: TileConfig, visits: Visits, table: Any, x: Any, dy: Any) -> jax.Array:
    """Run wgrad: ``dw[k] = sum_m x[:, table[k, m]] * dy[:, m]``, as partial sums.

    The result is ``float32[stripes, K * C, WINDOW_TILE]``: one sum for each stripe, that is, part
    of the visits, and each lane of a register. The caller sums over the first and the last axis.
    The arguments are those of :func:`product`; ``dy`` is ``[C, M]``.
    """
    shape = config.taps * channels_of(x), WINDOW_TILE
    return call_of_weights(
        config, visits, functools.partial(_add_weights, config), table, x, dy, shape
    )


@functools.partial(jax.jit, static_argnums=0)
def gradients(
    config: TileConfig, visits: Visits, table: Any, dy: Any, w: Any, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Run dgrad and wgrad together, since both select the rows ``dy[:, table[k, n]]``.

    Returns the results of :func:`product` (dx) and of :func:`weight_product` (dw). The arguments
    are those of :func:`product` for dgrad; ``x`` is ``[C, N]``.
    """
    return call_of_gradients(
        config,
        visits,
        functools.partial(_times_weights, config),
        functools.partial(_add_weights, config),
        table,
        dy,
        _everywhere(w),
        x,
        (config.taps * channels_of(dy), WINDOW_TILE),
    )


def _everywhere(w: jax.Array) -> jax.Array:
    """Return ``[K * C, WINDOW_TILE]``: each weight of ``w [C, K]`` in all lanes of its own row.

    Row ``k * C + c`` has the weight of kernel offset ``k`` and channel ``c``.
    """
    return jnp.broadcast_to(w.T.reshape(-1, 1), (w.size, WINDOW_TILE))


def _times_weights(config: TileConfig, picked: Any, w_ref: Any) -> jax.Array:
    """Return ``[C, config.rows]``: gathered rows times weights, summed over kernel offsets.

    ``picked`` has the gathered rows of all kernel offsets, offset after offset along axis 1.
    ``w_ref`` has the weights from :func:`_everywhere`.
    """
    # y[c, m] = sum_k x[c, table[k, m]] * w[k, c]. The selected rows are ordered by tap.
    channels, tiles = w_ref.shape[0] // config.taps, []
    for lanes in config.tile_lanes:
        y = jnp.zeros((channels, WINDOW_TILE), jnp.float32)
        for begin in range(0, config.taps * channels, channels):
            # Each weight is in all lanes, so the vector unit multiplies lane by lane.
            y = y + _rows(picked, begin, channels, lanes) * w_ref[begin : begin + channels]
        tiles.append(y)
    return jnp.concatenate(tiles, axis=1)


def _add_weights(config: TileConfig, picked: Any, tile: jax.Array, out: Any) -> None:
    """Add what one step (visit) contributes to the weight gradient to ``out``.

    ``picked`` has the gathered rows of all kernel offsets. ``tile``, ``[C, config.rows]``, has the
    rows of the operand that is not gathered. They are multiplied channel by channel. ``out`` is
    ``[1, K * C, WINDOW_TILE]``: a sum for each lane.
    """
    channels, other = tile.shape[0], tile.astype(jnp.float32)
    for begin in range(0, config.taps * channels, channels):
        terms = [
            _rows(picked, begin, channels, lanes) * other[:, lanes] for lanes in config.tile_lanes
        ]
        # Lanes are not added here, because XLA adds them once, after all visits.
        out[0, begin : begin + channels] += sum(terms[1:], terms[0])


def _rows(picked: Any, begin: int, channels: int, lanes: slice) -> jax.Array:
    """Return gathered channels ``begin`` to ``begin + channels`` of ``picked`` as float32.

    Channels are counted through all kernel offsets, so these are the channels of one offset.
    ``lanes`` selects output rows. The result is ``[channels, number of lanes]``.
    """
    if picked.dtype == jnp.float32:
        return picked[0, begin : begin + channels, lanes]
    words = picked[0, begin // 2 : (begin + channels) // 2, lanes]
    return pltpu.bitcast(words, jnp.bfloat16).astype(jnp.float32)
