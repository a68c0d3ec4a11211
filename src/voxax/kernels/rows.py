"""Shared steps of the algorithms in plain XLA: gathered rows and their small products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import accumulator
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import Parameters, Problem, Product, Views


def multiplies(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why XLA cannot multiply the problem's dtype, or None."""
    del hardware
    dtype = jnp.dtype(problem.dtype)
    if not (jnp.issubdtype(dtype, jnp.inexact) or jnp.issubdtype(dtype, jnp.integer)):
        return f"multiplies floating-point or integer features, got {problem.dtype}"
    # XLA unpacks the elements of a sum, but not those of a matrix product.
    if problem.layer.kind != "depthwise" and _bits_of(dtype) < 8:
        return (
            f"multiplies elements of at least 8 bits, got {problem.dtype}: convert features and "
            "weight, to int8 or bfloat16 for example"
        )
    if np.zeros((), dtype).astype(np.complex64) != 0:  # complex numbers keep their value
        return f"needs zero for missing neighbors, which {problem.dtype} does not have"
    return None


def table_name(problem: Problem) -> str:
    """Return the name of the neighbor table that a product reads.

    A symmetric map is its own transpose with the taps reversed, so both read one table.
    """
    return table_read((), problem.product, problem.layer.symmetric)[0]


def table_read(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Return the views of a kernel that only reads a neighbor table, as :attr:`Kernel.reads`."""
    del parameters
    if product == "dgrad" and not symmetric:
        return ("transposed_neighbors",)
    return ("neighbors",)


def oriented(problem: Problem, b: jax.Array, views: Views) -> tuple[jax.Array, jax.Array]:
    """Return ``(weight, table)`` of a forward product or dgrad.

    The product is ``sum_k x[table[:, k]] @ weight[k]``.
    """
    return weight_read(problem, b), views[table_name(problem)]


def weight_read(problem: Problem, b: jax.Array) -> jax.Array:
    """Return the weight for the table of :func:`table_name`: forward's weight, or its transpose."""
    if problem.product == "forward":
        return b
    w = b if problem.layer.kind == "depthwise" else jnp.swapaxes(b, -1, -2)
    return w[::-1] if problem.layer.symmetric else w


def with_zero_row(x: jax.Array) -> jax.Array:
    """Return ``[N + 1, C]``, with a last row of zeros, which missing neighbors read."""
    return jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])


def clear_missing(neighbors: jax.Array, x: jax.Array) -> jax.Array:
    """Return the table with N, the row of zeros of :func:`with_zero_row`, for missing neighbors."""
    return jnp.where(neighbors < 0, x.shape[0], neighbors)


def clear_unreached(dy: jax.Array, neighbors: jax.Array) -> jax.Array:
    """Return ``dy`` with zeros in rows without any neighbor, such as padding: 0 * NaN is NaN."""
    return jnp.where(jnp.any(neighbors >= 0, axis=1)[:, None], dy, jnp.zeros((), dy.dtype))


def split_rows(array: jax.Array, size: int, fill: int) -> jax.Array:
    """Return ``[tiles, size, C]`` from ``[M, C]``, the last tile filled up with ``fill``."""
    rows = array.shape[0]
    tiles = max(1, -(-rows // size))
    padding = ((0, tiles * size - rows), (0, 0))
    return jnp.pad(array, padding, constant_values=fill).reshape(tiles, size, array.shape[1])


def options(problem: Problem, dtype: Any) -> dict[str, Any]:
    """Return options of XLA's products: the problem's precision, and a wide accumulator."""
    return {"precision": problem.layer.precision, "preferred_element_type": accumulator(dtype)}


def zeros(shape: Sequence[int], dtype: Any, *operands: jax.Array) -> jax.Array:
    """Return zeros as a loop's initial sum, varying over the same mesh axes as the operands.

    Inside ``shard_map`` a loop's carry must vary from the start. The sum of no rows of an operand
    is zero and varies as the operand does.
    """
    total = jnp.zeros(shape, dtype)
    for operand in operands:
        total = total + jnp.sum(operand[:0]).astype(dtype)
    return total


def times(problem: Problem, rows: jax.Array, w: jax.Array) -> jax.Array:
    """Return ``[T, C_out]``, the product of rows and one tap's weight of any kind.

    It is accumulated wide. ``rows`` is ``[T, C_in]``.
    """
    wide = options(problem, rows.dtype)
    if problem.layer.kind == "depthwise":
        return rows.astype(accumulator(rows.dtype)) * w.astype(accumulator(rows.dtype))[None, :]
    if problem.layer.kind == "grouped":
        groups, c_in, c_out = w.shape
        parts = rows.reshape(rows.shape[0], groups, c_in)
        if problem.platform == "cpu":
            # XLA refuses groups of bfloat16 on some CPUs. In float32 its products are exact.
            parts, w = parts.astype(accumulator(rows.dtype)), w.astype(accumulator(rows.dtype))
        out = jnp.einsum("tgi,gio->tgo", parts, w, **wide)
        return out.reshape(rows.shape[0], groups * c_out)
    return jnp.matmul(rows, w, **wide)


def outer(problem: Problem, rows: jax.Array, g: jax.Array) -> jax.Array:
    """Return the weight gradient of one tap, from rows ``[T, C_in]`` and ``g [T, C_out]``.

    It is accumulated wide.
    """
    wide = options(problem, g.dtype)
    if problem.layer.kind == "depthwise":
        return jnp.sum(rows.astype(accumulator(g.dtype)) * g.astype(accumulator(g.dtype)), axis=0)
    if problem.layer.kind == "grouped":
        _, groups, c_in, c_out = problem.weight_shape
        parts = rows.reshape(rows.shape[0], groups, c_in)
        return jnp.einsum("tgi,tgo->gio", parts, g.reshape(g.shape[0], groups, c_out), **wide)
    return jnp.matmul(rows.T, g, **wide)


def _bits_of(dtype: Any) -> int:
    """Return the bits of one element; int4 has 4, though NumPy stores it in a byte."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    return 8 * jnp.dtype(dtype).itemsize
