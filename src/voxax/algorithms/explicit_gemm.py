"""explicit_gemm: gather rows, multiply dense, accumulate. Portable; every other's oracle.

Output-stationary: a tile of output rows gathers the input rows under all K taps into a
``[tile, K * C_in]`` matrix (im2col) and multiplies it with the flattened weight in one
dense product. Missing neighbours read a zero row. Nothing is scattered, so the result
does not depend on an order of additions that changes from run to run, and the adjoint
is the same computation over the transposed table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Algorithm, Problem
from voxax.geometry.dtypes import accumulator

if TYPE_CHECKING:
    from voxax.geometry import KernelMap

# Elements of one gathered tile. Measured on 2 cores of an AMD EPYC (Zen 3), 10k voxels,
# 27 taps, float32, four convolutions: tiles of 0.5 to 2 M elements take 16, 41 and 70 ms for
# 16, 32 and 64 channels; one tile of everything takes 42, 107 and 120 ms (its pages are
# mapped and cleared anew in every call), tiles of 128 rows up to twice the best.
_TILE_ELEMENTS = 2**20


def _prepare(kernel_map: KernelMap) -> tuple[str, ...]:
    # A symmetric map is its own transpose with the taps reversed: one table serves both.
    return ("neighbors",) if kernel_map.symmetric else ("neighbors", "transposed_neighbors")


def _supports(problem: Problem) -> str | None:
    if not jnp.issubdtype(jnp.dtype(problem.dtype), jnp.inexact):
        return f"explicit_gemm multiplies floating-point features, got {problem.dtype}"
    return None


def _apply(problem: Problem, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]) -> jax.Array:
    if problem.product == "wgrad":
        return _gather_wgrad(problem, a, b, views["neighbors"])
    if problem.product == "forward":
        return _gather_product(problem, a, b, views["neighbors"])
    w = b if problem.kind == "depthwise" else jnp.swapaxes(b, -1, -2)
    if problem.symmetric:
        return _gather_product(problem, a, w[::-1], views["neighbors"])
    return _gather_product(problem, a, w, views["transposed_neighbors"])


def _gather_product(
    problem: Problem, x: jax.Array, w: jax.Array, neighbors: jax.Array
) -> jax.Array:
    """``y[m] = sum_k x[neighbors[m, k]] @ w[k]``: ``[M, C_out]``."""
    source = _with_zero_row(x)

    def tile(rows: jax.Array) -> jax.Array:
        gathered = source.at[rows].get(mode="clip")
        return _multiply(problem, gathered, w).astype(x.dtype)

    return _by_tiles(tile, _clear_missing(neighbors, x), x.shape[1])


def _multiply(problem: Problem, gathered: jax.Array, w: jax.Array) -> jax.Array:
    """``[T, K, C_in]`` times the weight of one of three kinds: ``[T, C_out]``, accumulated wide."""
    options = {
        "precision": problem.precision,
        "preferred_element_type": accumulator(gathered.dtype),
    }
    if problem.kind == "depthwise":
        return jnp.einsum("tkc,kc->tc", gathered, w, **options)
    if problem.kind == "grouped":
        taps, groups, _, _ = w.shape
        parts = gathered.reshape(gathered.shape[0], taps, groups, -1)
        out = jnp.einsum("tkgi,kgio->tgo", parts, w, **options)
        return out.reshape(gathered.shape[0], -1)
    flat = gathered.reshape(gathered.shape[0], -1)
    return jnp.matmul(flat, w.reshape(flat.shape[1], -1), **options)


def _gather_wgrad(problem: Problem, x: jax.Array, dy: jax.Array, neighbors: jax.Array) -> jax.Array:
    """``dw[k] = sum_m x[neighbors[m, k]]^T dy[m]`` in the weight's shape."""
    # Rows without any neighbour (padding among them) add nothing; zero times NaN would.
    dy = jnp.where(jnp.any(neighbors >= 0, axis=1)[:, None], dy, jnp.zeros((), dy.dtype))
    source = _with_zero_row(x)
    rows = _clear_missing(neighbors, x)
    size = _tile_rows(rows.shape, x.shape[1])
    rows = _split(rows, size, x.shape[0])
    parts = _split(dy, size, 0)
    shape = _weight_shape(problem)

    def step(total: jax.Array, tile: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        index, g = tile
        return total + _outer(problem, source.at[index].get(mode="clip"), g), None

    total = jnp.zeros(shape, accumulator(x.dtype))
    if len(rows) == 1:
        return step(total, (rows[0], parts[0]))[0].astype(x.dtype)
    return jax.lax.scan(step, total, (rows, parts))[0].astype(x.dtype)


def _outer(problem: Problem, gathered: jax.Array, g: jax.Array) -> jax.Array:
    """``[T, K, C_in]`` and ``[T, C_out]`` to the weight's shape."""
    options = {"precision": problem.precision, "preferred_element_type": accumulator(g.dtype)}
    if problem.kind == "depthwise":
        return jnp.einsum("tkc,tc->kc", gathered, g, **options)
    if problem.kind == "grouped":
        rows, taps, _ = gathered.shape
        parts = gathered.reshape(rows, taps, problem.groups, -1)
        return jnp.einsum("tkgi,tgo->kgio", parts, g.reshape(rows, problem.groups, -1), **options)
    flat = gathered.reshape(gathered.shape[0], -1)
    # dy^T A and a small transpose: a third faster than A^T dy, whose wide operand would be
    # the one to transpose.
    return jnp.matmul(g.T, flat, **options).T.reshape(_weight_shape(problem))


def _weight_shape(problem: Problem) -> tuple[int, ...]:
    taps, c_in, c_out = problem.num_offsets, problem.in_channels, problem.out_channels
    if problem.kind == "depthwise":
        return (taps, c_in)
    if problem.kind == "grouped":
        return (taps, problem.groups, c_in // problem.groups, c_out // problem.groups)
    return (taps, c_in, c_out)


def _with_zero_row(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])


def _clear_missing(neighbors: jax.Array, x: jax.Array) -> jax.Array:
    """Point missing neighbours at the zero row behind the last."""
    return jnp.where(neighbors < 0, x.shape[0], neighbors)


def _tile_rows(shape: tuple[int, ...], channels: int) -> int:
    rows, taps = shape
    return max(64, min(rows, _TILE_ELEMENTS // max(taps * channels, 1)))


def _split(array: jax.Array, size: int, fill: int) -> jax.Array:
    """``[M, C]`` to ``[tiles, size, C]``, the last one filled up with ``fill``."""
    rows = array.shape[0]
    tiles = max(1, -(-rows // size))
    padding = ((0, tiles * size - rows), (0, 0))
    return jnp.pad(array, padding, constant_values=fill).reshape(tiles, size, array.shape[1])


def _by_tiles(
    tile: Callable[[jax.Array], jax.Array], neighbors: jax.Array, channels: int
) -> jax.Array:
    rows = neighbors.shape[0]
    size = _tile_rows(neighbors.shape, channels)
    if size >= rows:
        return tile(neighbors)
    # Fill rows read row 0 of the source: harmless, their outputs are cut off below.
    out = jax.lax.map(tile, _split(neighbors, size, 0))
    return out.reshape(-1, out.shape[-1])[:rows]


ALGORITHM = Algorithm(
    name="explicit_gemm",
    products=frozenset({"forward", "dgrad", "wgrad"}),
    platforms=frozenset({"any"}),
    supports=_supports,
    prepare=_prepare,
    apply=_apply,
)
