"""Convolution of point clouds whose weights a small network computes from the place."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    neighbor_conv,
)

Net = Callable[[jax.Array], jax.Array]


def point_conv(
    points: Points,
    weight: jax.Array,
    neighbors: Neighbors,
    weight_net: Net,
    queries: Points | None = None,
    *,
    density: jax.Array | None = None,
    density_net: Net | None = None,
    bias: jax.Array | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """``y(q) = sum over i, t of s_i g_t(p_i - q) W_t x_i``, with a network g of T outputs.

    The weight function of the source, ``g_t W_t`` summed over t, without an array of it: the sum
    over neighbours comes first (there "efficient PointConv"). s is a function of the inverse
    density, so that crowded places do not count more.

    Args:
      points: C channels, D axes.
      weight: ``[T, C, C_out]``, the last layer of the weight function.
      neighbors: of the queries among the points, by ``vx.knn_search`` or ``vx.radius_search``.
      weight_net: g, from ``float[m, k, D]`` to ``float[m, k, T]``, in the unit of the positions.
        It is called on blocks, and sees zeros where a query has fewer neighbours.
      queries: where to; None takes the points.
      density: ``float[N]`` of the points, above 0, see :func:`point_density`; None leaves s out.
      density_net: from inverse densities over the largest one around the query,
        ``float[m, k, 1]`` in (0, 1], to s, ``float[m, k, 1]``; None takes the inverse density
        itself.
      bias: ``[C_out]`` or None.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      The queries with ``C_out`` channels in the promoted dtype of features and weight, accumulated
      in at least float32. Differentiable in every array, what the networks close over included.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: Wu et al., "PointConv: Deep Convolutional Networks on 3D Point Clouds", CVPR 2019.
    """
    taps = weight.shape[0]
    if density is None and density_net is not None:
        raise InputError("density_net= acts on densities: give density=, see point_density")
    if density is not None:
        check_shape("density", density, (points.capacity,))
        density = jnp.where(points.valid, density, jnp.ones((), density.dtype))

    def coefficients(around: Around) -> jax.Array:
        c = weight_net(around.places)
        if c.shape != (*around.places.shape[:-1], taps):
            raise InputError(
                f"weight_net returned {list(c.shape)} for {list(around.places.shape)}: expected "
                f"{taps} outputs, one for each of the weight's"
            )
        if density is None:
            return c
        sparse = 1 / density.at[jnp.maximum(around.rows, 0)].get(mode="clip")
        sparse = jnp.where(around.there, sparse, jnp.zeros((), sparse.dtype))
        if density_net is None:
            return c * sparse[..., None].astype(c.dtype)
        most = jnp.max(sparse, axis=1, keepdims=True)
        relative = sparse / jnp.where(most > 0, most, 1)
        return c * density_net(relative[..., None]).astype(c.dtype)

    return neighbor_conv(
        points, queries, neighbors, weight, coefficients, bias=bias, precision=precision
    )


def point_density(
    points: Points, neighbors: Neighbors, *, bandwidth: float | jax.Array
) -> jax.Array:
    """Points per unit of volume around each point, by a Gaussian kernel.

    Args:
      points: D axes.
      neighbors: of the points among themselves; what lies beyond three bandwidths hardly counts.
      bandwidth: standard deviation of the kernel, in the unit of the positions; may be traced.

    Returns:
      ``float[capacity]``, zero in padding rows. Differentiable in positions and bandwidth.

    Raises:
      InputError: neighbours of another number of queries.
    """
    check_neighbors(points, points, neighbors)
    around_of = block_of(points)

    def block(part: tuple) -> jax.Array:
        around = around_of(part)
        width = jnp.asarray(bandwidth, around.places.dtype)
        squares = jnp.sum(around.places**2, axis=-1)
        h = jnp.exp(-squares / (2 * width**2)) / (math.sqrt(2 * math.pi) * width) ** points.ndim
        return jnp.sum(jnp.where(around.there, h, jnp.zeros((), h.dtype)), axis=1)

    return in_blocks(block, neighbors.capacity, neighbors.rows, points.positions, None)
