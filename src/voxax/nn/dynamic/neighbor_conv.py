"""Convolve over neighboring points: ``y[m] = sum_t (sum_j c[m, j, t] x[j]) W_t``.

Convolutions over points differ in the coefficients ``c``, functions of the place of neighbor j
around query m. Queries go block by block, each computed again in the backward pass, so that the
coefficients of only one block exist at a time, and the products ``c x W`` of neighbors never do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.geometry.neighbors import Neighbors
from voxax.geometry.points import Points
from voxax.geometry.regroup import gather_rows
from voxax.nn.arguments import add_bias
from voxax.products.convolve import precision_name

# Elements that a block of queries may take.
_BLOCK = 1 << 22


class Around(NamedTuple):
    """A block of queries.

    Attributes:
      places: ``float[m, k, D]``, neighbors minus query; zero where there is none.
      rows: ``int32[m, k]``, or -1.
      there: ``bool[m, k]``.
      extra: the block's part of what was given by query.
    """

    places: jax.Array
    rows: jax.Array
    there: jax.Array
    extra: Any


def neighbor_conv(
    points: Points,
    queries: Points | None,
    neighbors: Neighbors,
    weight: jax.Array,
    coefficients: Callable[[Around], jax.Array],
    *,
    extra: Any = None,
    bias: jax.Array | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """Sum the features of neighbors with coefficients, then multiply with one weight for each.

    Args:
      points: C channels.
      queries: where to; None takes the points.
      neighbors: rows of ``points`` around each query.
      weight: ``[T, C, C_out]``.
      coefficients: from a block of queries to ``float[m, k, T]``; read only where a neighbor is.
      extra: a tree of arrays by query ``[M, ...]``, which ``coefficients`` sees a block of.
      bias: ``[C_out]`` or None.
      precision: as for ``dynamic_conv``.

    Returns:
      The queries with ``[M, C_out]`` features in the promoted dtype of features and weight,
      accumulated in at least float32.

    Raises:
      InputError: shapes or dtypes that do not fit.
    """
    queries = points if queries is None else queries
    check_neighbors(points, queries, neighbors)
    x, taps = points.features, weight.shape[0]
    if weight.ndim != 3 or weight.shape[1] != x.shape[1]:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for points of {x.shape[1]} channels: expected "
            f"{taps} of [{x.shape[1]}, C_out]"
        )
    if not all(jnp.issubdtype(a.dtype, jnp.floating) for a in (x, weight)):
        raise InputError(f"features of {x.dtype} and weight of {weight.dtype}: give floats")
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    wide = accumulator(dtype)
    options = {"precision": precision_name(precision), "preferred_element_type": wide}
    channels, c_out = weight.shape[1:]
    # Padding rows may hold anything, and no neighbor is one.
    source = jnp.where(points.valid[:, None], x, jnp.zeros((), x.dtype)).astype(dtype)
    flat = weight.astype(dtype).reshape(taps * channels, c_out)

    def block(part: tuple[jax.Array, jax.Array, Any]) -> jax.Array:
        around = around_queries(points, *part)
        c = coefficients(around)
        # In the dtype of the products; what stands where no neighbor is reaches no gradient.
        c = jnp.where(around.there[..., None], c, jnp.zeros((), c.dtype)).astype(dtype)
        sums = jnp.einsum("mkt,mkc->mtc", c, gather_rows(source, around.rows), **options)
        return jnp.matmul(sums.astype(dtype).reshape(-1, taps * channels), flat, **options)

    y = in_blocks(block, neighbors.capacity * (channels + taps) + taps * channels, neighbors.rows,
                  queries.positions, extra)  # fmt: skip
    y = y.reshape(queries.capacity, c_out)
    return queries.replace_features(add_bias(y, bias).astype(dtype))


def in_blocks(
    run: Callable[[tuple[jax.Array, jax.Array, Any]], jax.Array],
    elements: int,
    rows: jax.Array,
    positions: jax.Array,
    extra: Any,
) -> jax.Array:
    """Run a function block by block on ``(rows, positions, extra)``: ``[M, ...]``.

    Args:
      run: from a block to ``[m, ...]``.
      elements: what one query takes.
      rows: ``int32[M, k]``, or -1.
      positions: ``float[M, D]``.
      extra: a tree of arrays ``[M, ...]``.
    """
    number = rows.shape[0]
    size = max(1, min(number, _BLOCK // max(elements, 1)))
    blocks = -(-number // size)
    behind = blocks * size - number

    def cut(array: jax.Array, fill: int) -> jax.Array:
        sides = [(0, behind)] + [(0, 0)] * (array.ndim - 1)
        padded = jnp.pad(array, sides, constant_values=fill)
        return padded.reshape(blocks, size, *array.shape[1:])

    parts = (cut(rows, -1), cut(positions, 0), jax.tree.map(lambda a: cut(a, 0), extra))
    y = jax.lax.map(jax.checkpoint(run), parts)
    return y.reshape(blocks * size, *y.shape[2:])[:number]


def around_queries(points: Points, rows: jax.Array, positions: jax.Array, extra: Any) -> Around:
    """Return what is around a block of queries, for the functions that :func:`in_blocks` runs."""
    there = rows >= 0
    wide = max(points.positions.dtype, positions.dtype, key=lambda dtype: dtype.itemsize)
    near = points.positions.at[jnp.maximum(rows, 0)].get(mode="clip").astype(wide)
    places = near - positions.astype(wide)[:, None]
    places = jnp.where(there[..., None], places, jnp.zeros((), wide))
    return Around(places, rows, there, extra)


def check_neighbors(points: Points, queries: Points, neighbors: Neighbors) -> None:
    """Raise :class:`InputError` unless these are neighbors of the queries among the points."""
    if points.ndim != queries.ndim:
        raise InputError(f"queries of {queries.ndim} axes among points of {points.ndim}")
    if neighbors.rows.shape[0] != queries.capacity:
        raise InputError(
            f"neighbors of {neighbors.rows.shape[0]} queries, there are {queries.capacity}: search "
            "with these points and queries"
        )


def length(places: jax.Array) -> jax.Array:
    """Return the norm along the last axis, with slope zero at zero."""
    squares = jnp.sum(places**2, axis=-1)
    positive = squares > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)
