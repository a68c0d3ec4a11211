"""Convolve point clouds with a weight at each of a few kernel points, rigid or deformable."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry.neighbors import Neighbors
from voxax.geometry.points import Points
from voxax.nn.arguments import check_shape
from voxax.nn.dynamic.neighbor_conv import (
    Around,
    around_queries,
    check_neighbors,
    in_blocks,
    length,
    neighbor_conv,
)

_STEPS = 2000


def kernel_point_positions(number: int, ndim: int = 3, *, radius: float = 1.0) -> np.ndarray:
    """Return ``float64[number, ndim]``: a point in the center, the others as far apart as possible.

    They minimise the sum over pairs of ``1 / distance`` plus the sum of squared norms, and are then
    scaled so that the mean norm of those not in the center is ``radius``. The same on every call:
    it starts from fixed random places, on the host.

    Args:
      number: static, at least 1; 15 is usual in three axes.
      ndim: axes, 1 to 4.
      radius: in the unit of the positions; the source takes 1.5 times the extent.

    Raises:
      InputError: a number below 1, other axes.

    Source: supplement of Thomas et al., "KPConv", ICCV 2019.
    """
    if number < 1 or not 1 <= ndim <= 4:
        raise InputError(f"{number} kernel points in {ndim} axes: give 1 or more, in 1 to 4 axes")
    places = np.array(_relaxed(int(number), int(ndim)))
    if number > 1:
        places *= radius / np.linalg.norm(places[1:], axis=1).mean()
    return places


@functools.lru_cache(maxsize=32)
def _relaxed(number: int, ndim: int) -> np.ndarray:
    places = np.random.default_rng(number).standard_normal((number, ndim))
    places[0] = 0
    if ndim == 1:
        # On a line points cannot pass each other: they start in order.
        places[1:, 0] = np.arange(1, number) // 2 + 1
        places[1::2, 0] *= -1
    for turn in range(_STEPS):
        between = places[:, None] - places[None]
        apart = np.maximum(np.linalg.norm(between, axis=-1), 1e-3) + np.eye(number)
        force = np.sum(between / apart[..., None] ** 3, axis=1) - 2 * places
        # Steps of bounded length that shrink: no overshoot where two points start together.
        size = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-12)
        step = np.minimum(0.1 * size, 0.3 * (1 - turn / _STEPS))
        places[1:] += (step * force / size)[1:]
    return places


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
    """Convolve points with a weight at each kernel point.

    ``y(q) = sum over i, k of h(|p_i - q - (kp_k + offset_k(q))|) m_k(q) W_k x_i``.

    Args:
      points: C channels, D axes.
      weight: ``[K, C, C_out]``.
      neighbors: of the queries among the points, by ``vx.radius_search`` or ``vx.knn_search``.
      kernel_points: ``float[K, D]``, around the query, in the unit of the positions; see
        :func:`voxax.nn.functional.kernel_point_conv`.
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
      the slope is zero where a neighbor lies on a kernel point.

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
    """Return losses that keep deformed kernel points near the cloud and apart from each other.

    Args:
      points, neighbors, kernel_points, offsets, queries, extent: as for
        :func:`kernel_point_conv`.

    Returns:
      Two scalars, means over the queries: the fitting loss, of each kernel point the squared
      distance to the nearest neighbor over ``extent``, summed; and the repulsive loss, of all
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

    def block(part: tuple) -> jax.Array:
        around = around_queries(points, *part)
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
    """Return the kernel points ``[m or 1, K, D]``, moved by the offsets."""
    nodes = kernel_points.astype(dtype)[None]
    return nodes if offsets is None else nodes + offsets.astype(dtype)
