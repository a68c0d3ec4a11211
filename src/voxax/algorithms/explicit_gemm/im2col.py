"""im2col by tiles of output rows: one wide product for each tile.

A tile of output rows gathers the input rows under all K taps into a ``[tile, K * C_in]``
matrix and multiplies it with the flattened weight. Missing neighbours read a zero row.
Nothing is scattered, so the result does not depend on an order of additions that changes
from run to run, and the adjoint is the same computation over the transposed table.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Problem
from voxax.algorithms.rows import (
    clear_missing,
    clear_unreached,
    options,
    oriented,
    split_rows,
    with_zero_row,
    zeros,
)
from voxax.geometry.dtypes import accumulator, product_dtype

# Elements of one gathered tile. Measured on 2 cores of an AMD EPYC (Zen 3), 10k voxels,
# 27 taps, float32, four convolutions: tiles of 0.5 to 2 M elements take 16, 41 and 70 ms for
# 16, 32 and 64 channels; one tile of everything takes 42, 107 and 120 ms (its pages are
# mapped and cleared anew in every call), tiles of 128 rows up to twice the best.
_TILE_ELEMENTS = 2**20


def im2col(problem: Problem, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]) -> jax.Array:
    """Any product by im2col; arguments as :class:`voxax.algorithms.base.Apply`."""
    if problem.product == "wgrad":
        return _gather_wgrad(problem, a, b, views["neighbors"])
    return _gather_product(problem, a, *oriented(problem, b, views))


def _gather_product(
    problem: Problem, x: jax.Array, w: jax.Array, neighbors: jax.Array
) -> jax.Array:
    """``y[m] = sum_k x[neighbors[m, k]] @ w[k]``: ``[M, C_out]``."""
    source = with_zero_row(x)
    rows = clear_missing(neighbors, x)

    def tile(index: jax.Array) -> jax.Array:
        gathered = source.at[index].get(mode="clip")
        return _multiply(problem, gathered, w).astype(product_dtype(x.dtype))

    size = _tile_rows(rows.shape, x.shape[1])
    if size >= len(rows):
        return tile(rows)
    # Fill rows read row 0 of the source: harmless, their outputs are cut off below.
    out = jax.lax.map(tile, split_rows(rows, size, 0))
    return out.reshape(out.shape[0] * size, out.shape[-1])[: len(rows)]


def _multiply(problem: Problem, gathered: jax.Array, w: jax.Array) -> jax.Array:
    """``[T, K, C_in]`` times the weight of one of three kinds: ``[T, C_out]``, accumulated wide."""
    wide = options(problem, gathered.dtype)
    if problem.kind == "depthwise":
        return jnp.einsum("tkc,kc->tc", gathered, w, **wide)
    # No -1 in these shapes: it is undefined where there are no rows.
    rows, taps, channels = gathered.shape
    if problem.kind == "grouped":
        groups, c_in, c_out = w.shape[1:]
        parts = gathered.reshape(rows, taps, groups, c_in)
        out = jnp.einsum("tkgi,kgio->tgo", parts, w, **wide)
        return out.reshape(rows, groups * c_out)
    flat = gathered.reshape(rows, taps * channels)
    return jnp.matmul(flat, w.reshape(taps * channels, w.shape[-1]), **wide)


def _gather_wgrad(problem: Problem, x: jax.Array, dy: jax.Array, neighbors: jax.Array) -> jax.Array:
    """``dw[k] = sum_m x[neighbors[m, k]]^T dy[m]`` in the weight's shape."""
    source = with_zero_row(x)
    size = _tile_rows(neighbors.shape, x.shape[1])
    rows = split_rows(clear_missing(neighbors, x), size, x.shape[0])
    parts = split_rows(clear_unreached(dy, neighbors), size, 0)

    def step(total: jax.Array, tile: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, g = tile
        return total + _outer(problem, source.at[index].get(mode="clip"), g), None

    total = zeros(problem.weight_shape, accumulator(x.dtype), x)
    if len(rows) == 1:
        return step(total, (rows[0], parts[0]))[0].astype(product_dtype(x.dtype))
    return jax.lax.scan(step, total, (rows, parts))[0].astype(product_dtype(x.dtype))


def _outer(problem: Problem, gathered: jax.Array, g: jax.Array) -> jax.Array:
    """``[T, K, C_in]`` and ``[T, C_out]`` to the weight's shape."""
    wide = options(problem, g.dtype)
    if problem.kind == "depthwise":
        return jnp.einsum("tkc,tc->kc", gathered, g, **wide)
    rows, taps, channels = gathered.shape
    if problem.kind == "grouped":
        _, groups, c_in, c_out = problem.weight_shape
        parts = gathered.reshape(rows, taps, groups, c_in)
        return jnp.einsum("tkgi,tgo->kgio", parts, g.reshape(rows, groups, c_out), **wide)
    flat = gathered.reshape(rows, taps * channels)
    # dy^T A and a small transpose: a third faster than A^T dy, whose wide operand would be
    # the one to transpose.
    return jnp.matmul(g.T, flat, **wide).T.reshape(problem.weight_shape)


def _tile_rows(shape: tuple[int, ...], channels: int) -> int:
    rows, taps = shape
    return max(64, min(rows, _TILE_ELEMENTS // max(taps * channels, 1)))
