"""Helpers of the algorithms in plain XLA: gathering of rows, and products with one tap's weight."""

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
    """Return the reason why XLA cannot compute with the problem's dtype, or None if it can."""
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
    """Return the name of the neighbor table that a product reads, see :func:`table_read`."""
    return table_read((), problem.product, problem.layer.symmetric)[0]


def table_read(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """Return ``(name,)`` of the neighbor table that a product reads, for ``Kernel.reads``.

    ``symmetric``, a layer's :attr:`~voxax.kernels.kernel.Layer.symmetric`, decides whether dgrad
    reads the table of the transposed map. ``parameters`` are ignored.
    """
    del parameters
    # The transpose of a symmetric map is the map with its taps reversed, so dgrad needs no other.
    if product == "dgrad" and not symmetric:
        return ("transposed_neighbors",)
    return ("neighbors",)


def oriented(problem: Problem, b: jax.Array, views: Views) -> tuple[jax.Array, jax.Array]:
    """Return ``(weight, table)``, with which forward or dgrad sums ``x[table[:, k]] @ weight[k]``.

    Here x is the first operand (dgrad: dy). ``b`` is the layer's weight, ``views`` are the map's
    arrays by name.
    """
    return weight_read(problem, b), views[table_name(problem)]


def weight_read(problem: Problem, b: jax.Array) -> jax.Array:
    """Return the weight by which forward or dgrad multiplies, with its taps in the table's order.

    ``b`` is the layer's weight. dgrad reads its transpose. If the map is symmetric, dgrad reads
    the table of forward, with the taps of the weight reversed.
    """
    if problem.product == "forward":
        return b
    w = b if problem.layer.kind == "depthwise" else jnp.swapaxes(b, -1, -2)
    return w[::-1] if problem.layer.symmetric else w


def with_zero_row(x: jax.Array) -> jax.Array:
    """Append a row of zeros to ``x [N, C]``, for missing neighbors to read."""
    return jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])


def clear_missing(neighbors: jax.Array, x: jax.Array) -> jax.Array:
    """Replace -1 in ``neighbors`` by N, the row of zeros of ``with_zero_row(x)``."""
    return jnp.where(neighbors < 0, x.shape[0], neighbors)


def clear_unreached(dy: jax.Array, neighbors: jax.Array) -> jax.Array:
    """Set rows of ``dy [M, C]`` that have no neighbor to zero, since padding may contain NaN.

    ``neighbors``, ``int32[M, K]``, has the input row by each tap, or -1.
    """
    return jnp.where(jnp.any(neighbors >= 0, axis=1)[:, None], dy, jnp.zeros((), dy.dtype))


def split_rows(array: jax.Array, size: int, fill: int) -> jax.Array:
    """Cut ``[M, C]`` into tiles, ``[tiles, size, C]``; pad the last tile with ``fill``."""
    rows = array.shape[0]
    tiles = max(1, -(-rows // size))
    padding = ((0, tiles * size - rows), (0, 0))
    return jnp.pad(array, padding, constant_values=fill).reshape(tiles, size, array.shape[1])


def options(problem: Problem, dtype: Any) -> dict[str, Any]:
    """Return keyword arguments for ``jnp.matmul``: precision, and the dtype of the accumulator."""
    return {"precision": problem.layer.precision, "preferred_element_type": accumulator(dtype)}


def zeros(shape: Sequence[int], dtype: Any, *operands: jax.Array) -> jax.Array:
    """Return zeros as the initial carry of a loop that adds products of the operands.

    Inside ``shard_map``, the carry varies over the same mesh axes as the operands, as JAX requires.
    """
    # The sum of an operand's first 0 rows is zero and varies over the operand's axes.
    total = jnp.zeros(shape, dtype)
    for operand in operands:
        total = total + jnp.sum(operand[:0]).astype(dtype)
    return total


def times(problem: Problem, rows: jax.Array, w: jax.Array) -> jax.Array:
    """Multiply rows ``[T, C_in]`` by ``w``, one tap's weight of any kind; return ``[T, C_out]``.

    The result has the dtype in which sums are accumulated.
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
    """Return the gradient of one tap's weight, summed over T output rows.

    ``rows``, ``[T, C_in]``, are the input rows that these read by the tap, and ``g``,
    ``[T, C_out]``, are their gradients dy. The result has the dtype in which sums are accumulated.
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
    """Return the number of bits of an element: 4 for int4, although NumPy stores it in a byte."""
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    return 8 * jnp.dtype(dtype).itemsize
