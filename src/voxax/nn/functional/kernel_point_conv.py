"""Convolution of point clouds with a weight at each of a few kernel points, rigid or deformable."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.neighbors import Neighbors
from voxax.geometry.points import Points
from voxax.nn.functional.grid_taps import check_shape
from voxax.nn.functional.neighbor_conv import (
    Around,
    block_of,
    check_neighbors,
    in_blocks,
    length,
    neighbor_conv,
)

Influence = Literal["linear", "gaussian", "constant"]
INFLUENCES = ("linear", "gaussian", "constant")


def kernel_point_conv(
    points: Points,
    weight: jax.Array,
    neighbors: Neighbors,
    kernel_points: jax.Array,
    queries: Points | None = None,
    *,
    extent: float | jax.Array,
    offsets: jax.Array | None = None,
    modulation: jax.Array | None = None,
    influence: Influence = "linear",
    bias: jax.Array | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """``y(q) = sum over i, k of h(|p_i - q - (kp_k + offset_k(q))|) m_k(q) W_k x_i``.

    Args:
      points: C channels, D axes.
      weight: ``[K, C, C_out]``.
      neighbors: of the queries among the points, by ``vx.radius_search`` or ``vx.knn_search``.
      kernel_points: ``float[K, D]``, around the query, in the unit of the positions; see
        :func:`voxax.nn.functional.kernel_point_positions`.
      queries: where to; None takes the points.
      extent: sigma, how far a kernel point reaches; may be traced.
      offsets: ``[M, K, D]``, moves each query's own kernel points (deformable); None is rigid.
      modulation: ``[M, K]``, factors.
      influence: h of a distance d. ``linear``: ``max(0, 1 - d / sigma)``. ``gaussian``: that of
        standard deviation ``0.3 sigma``. ``constant``: 1.
      bias: ``[C_out]`` or None.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      The queries with ``C_out`` channels in the promoted dtype of features and weight, accumulated
      in at least float32. Differentiable in every float array and both positions to any order;
      the slope is zero where a neighbour lies on a kernel point.

    Raises:
      InputError: shapes, dtypes or an influence that do not fit.

    Source: Thomas et al., "KPConv: Flexible and Deformable Convolution for Point Clouds", ICCV
    2019.
    """
    number = weight.shape[0]
    rows = (points if queries is None else queries).capacity
    if influence not in INFLUENCES:
        raise InputError(f"unknown influence {influence!r}; known: {', '.join(INFLUENCES)}")
    check_shape("kernel_points", kernel_points, (number, points.ndim))
    if offsets is not None:
        check_shape("offsets", offsets, (rows, number, points.ndim))
    if modulation is not None:
        check_shape("modulation", modulation, (rows, number))

    def coefficients(around: Around) -> jax.Array:
        places = around.places
        moved, factors = around.extra
        nodes = _nodes(kernel_points, moved, places.dtype)
        apart = length(places[:, :, None] - nodes[:, None])
        reach = jnp.asarray(extent, places.dtype)
        h = jnp.ones_like(apart)
        if influence == "linear":
            h = jnp.maximum(1 - apart / reach, 0)
        elif influence == "gaussian":
            h = jnp.exp(-(apart**2) / (2 * (0.3 * reach) ** 2))
        return h if factors is None else h * factors[:, None].astype(h.dtype)

    return neighbor_conv(
        points,
        queries,
        neighbors,
        weight,
        coefficients,
        extra=(offsets, modulation),
        bias=bias,
        precision=precision,
    )


def kernel_point_penalty(
    points: Points,
    neighbors: Neighbors,
    kernel_points: jax.Array,
    offsets: jax.Array,
    queries: Points | None = None,
    *,
    extent: float | jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """What keeps deformed kernel points near the cloud, and apart from each other.

    Args:
      points, neighbors, kernel_points, offsets, queries, extent: as for
        :func:`kernel_point_conv`.

    Returns:
      Two scalars, means over the queries: the fitting loss, of each kernel point the squared
      distance to the nearest neighbour over ``extent``, summed; and the repulsive loss, of all
      ordered pairs of kernel points the squared linear influence on each other, summed.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: equations 9 and 10 of Thomas et al., 2019 (there the sum over points).
    """
    queries = points if queries is None else queries
    check_neighbors(points, queries, neighbors)
    number = kernel_points.shape[0]
    check_shape("kernel_points", kernel_points, (number, points.ndim))
    check_shape("offsets", offsets, (queries.capacity, number, points.ndim))
    around_of = block_of(points)

    def block(part: tuple) -> jax.Array:
        around = around_of(part)
        places = around.places
        reach = jnp.asarray(extent, places.dtype)
        nodes = _nodes(kernel_points, around.extra, places.dtype)
        squares = jnp.sum((places[:, :, None] - nodes[:, None]) ** 2, axis=-1)
        squares = jnp.where(around.there[..., None], squares, jnp.inf)
        nearest = jnp.min(squares, axis=1, initial=jnp.inf)
        nearest = jnp.where(jnp.isfinite(nearest), nearest, 0)
        apart = length(nodes[:, :, None] - nodes[:, None])
        h = jnp.maximum(1 - apart / reach, 0) * (1 - jnp.eye(number, dtype=places.dtype))[None]
        return jnp.stack([jnp.sum(nearest, 1) / reach**2, jnp.sum(h**2, (1, 2))], axis=-1)

    elements = neighbors.capacity * number + number**2
    losses = in_blocks(block, elements, neighbors.rows, queries.positions, offsets)
    valid = queries.valid
    losses = jnp.where(valid[:, None], losses, jnp.zeros((), losses.dtype))
    number_of_queries = jnp.maximum(queries.count, 1).astype(losses.dtype)
    fitting, repulsive = jnp.sum(losses, axis=0) / number_of_queries
    return fitting, repulsive


def _nodes(kernel_points: jax.Array, offsets: jax.Array | None, dtype) -> jax.Array:
    """``[m or 1, K, D]``."""
    nodes = kernel_points.astype(dtype)[None]
    return nodes if offsets is None else nodes + offsets.astype(dtype)
