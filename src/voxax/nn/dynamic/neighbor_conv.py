"""Convolve point clouds over the neighbors of each point: continuous and kernel point convolution.

Both compute ``y[m] = sum_t (sum_j c[m, j, t] x[j]) W_t`` from features x of neighbors j and weights
``W_t``. They differ in the coefficients ``c``, functions of neighbor j's position relative to query
m. :func:`continuous_conv` interpolates a grid of matrices. :func:`kernel_point_conv` has a weight
at each of a few kernel points, rigid or deformable. Queries are computed block by block, and each
block again in the backward pass. So the coefficients of only one block exist at a time, and the
products ``c x W`` are never stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Float, Num
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.geometry.input_checks import check_positive
from voxax.geometry.neighbors import Neighbors
from voxax.geometry.points import Points
from voxax.geometry.regroup import gather_rows
from voxax.nn.arguments import add_bias, check_shape
from voxax.nn.dynamic.dynamic_conv import flat
from voxax.products.convolution import precision_name

# Elements that a block of queries may take.
_BLOCK = 1 << 22


class Around(NamedTuple):
    """The neighborhoods of a block of m queries, with k slots for neighbors each.

    Attributes:
      places: ``float[m, k, D]``, positions of the neighbors minus the query's; zero in empty slots.
      rows: ``int32[m, k]``, rows of the neighbors; -1 in empty slots.
      exists: ``bool[m, k]``, whether a slot has a neighbor.
      extra: the rows of the argument ``extra`` of :func:`neighbor_conv` for these queries.
    """

    places: jax.Array
    rows: jax.Array
    exists: jax.Array
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
    """Convolve points over the neighbors of each query, with T coefficients for each neighbor.

    ``y[m] = sum over t of (sum over j of coefficients[m, j, t] x[j]) weight[t]``, where the j are
    the neighbors of query m.

    Args:
      points: input with C channels.
      queries: M points of the output; None takes ``points``.
      neighbors: rows of ``points`` around each query.
      weight: ``[T, C, C_out]``.
      coefficients: function from :class:`Around`, a block of m queries, to ``float[m, k, T]``;
        values in empty slots are not used.
      extra: a tree of arrays ``[M, ...]``; ``coefficients`` gets the rows of its queries.
      bias: ``[C_out]`` or None.
      precision: as for ``dynamic_conv``.

    Returns:
      The queries with ``[M, C_out]`` features in the promoted dtype of features and weight,
      accumulated in at least float32.

    Raises:
      InputError: shapes or dtypes differ from those above.
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
    dtype = common_dtype(x.dtype, weight.dtype)
    wide = accumulator(dtype)
    options = {"precision": precision_name(precision), "preferred_element_type": wide}
    channels, c_out = weight.shape[1:]
    # Padding rows may hold anything; no neighbor is a padding row.
    source = jnp.where(points.valid[:, None], x, jnp.zeros((), x.dtype)).astype(dtype)
    flat = weight.astype(dtype).reshape(taps * channels, c_out)

    def block(part: tuple[jax.Array, jax.Array, Any]) -> jax.Array:
        around = around_queries(points, *part)
        c = coefficients(around)
        # Values in empty slots become zero before the cast, so they reach no gradient.
        c = jnp.where(around.exists[..., None], c, jnp.zeros((), c.dtype)).astype(dtype)
        sums = jnp.einsum("mkt,mkc->mtc", c, gather_rows(source, around.rows), **options)
        return jnp.matmul(sums.astype(dtype).reshape(-1, taps * channels), flat, **options)

    y = in_blocks(block, neighbors.capacity * (channels + taps) + taps * channels, neighbors.rows,
                  queries.positions_from(points.origin), extra)  # fmt: skip
    y = y.reshape(queries.capacity, c_out)
    return queries.replace_features(add_bias(y, bias).astype(dtype))


def in_blocks(
    run: Callable[[tuple[jax.Array, jax.Array, Any]], jax.Array],
    elements: int,
    rows: jax.Array,
    positions: jax.Array,
    extra: Any,
) -> jax.Array:
    """Run a function on blocks of m queries, and return the joined results ``[M, ...]``.

    Args:
      run: function from a block's ``(rows, positions, extra)`` to ``[m, ...]``.
      elements: number of array elements that one query needs, which limits m.
      rows: ``int32[M, k]``, rows of the neighbors, or -1.
      positions: ``float[M, D]``, positions of the queries.
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
    """Return the neighborhoods of a block of queries.

    ``rows``, ``positions`` and ``extra`` are what :func:`in_blocks` passes to its ``run``.
    """
    exists = rows >= 0
    wide = max(points.positions.dtype, positions.dtype, key=lambda dtype: dtype.itemsize)
    near = points.positions.at[jnp.maximum(rows, 0)].get(mode="clip").astype(wide)
    places = near - positions.astype(wide)[:, None]
    places = jnp.where(exists[..., None], places, jnp.zeros((), wide))
    return Around(places, rows, exists, extra)


def check_neighbors(points: Points, queries: Points, neighbors: Neighbors) -> None:
    """Raise :class:`InputError` if ``points`` and ``queries`` differ in number of axes.

    Raise it too unless ``neighbors`` have one row for each row of ``queries``.
    """
    if not isinstance(neighbors, Neighbors):
        raise InputError(
            f"neighbors are {type(neighbors).__name__}: give the result of vx.radius_search or "
            "vx.knn_search"
        )
    if points.ndim != queries.ndim:
        raise InputError(f"queries of {queries.ndim} axes among points of {points.ndim}")
    if neighbors.rows.shape[0] != queries.capacity:
        raise InputError(
            f"neighbors of {neighbors.rows.shape[0]} queries, there are {queries.capacity}: search "
            "with these points and queries"
        )


def length(places: jax.Array) -> jax.Array:
    """Return the norm of vectors ``places [..., D]``; the gradient at zero is zero, not NaN."""
    squares = jnp.sum(places**2, axis=-1)
    positive = squares > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)


Mapping = Literal["volume_preserving", "radial", "identity"]
Window = Callable[[jax.Array], jax.Array]


@checked_operator
def poly6(squares: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return ``(1 - q)^3``, a smooth weight of the point at ``q = r^2 / radius^2``; zero for q > 1.

    Args:
      squares: ``float[...]``, the squared relative distances q.

    Returns:
      ``float[...]``, 1 where q is 0.

    Source: Müller et al., "Particle-based fluid simulation for interactive applications", 2003.
    """
    return jnp.maximum(1 - squares, 0) ** 3


@checked_operator
def continuous_conv(
    points: Points,
    weight: Float[Array, "*T C C_out"],
    neighbors: Neighbors,
    queries: Points | None = None,
    *,
    radius: float | Num[Array, ""],
    mapping: Mapping = "volume_preserving",
    window: Window | None = poly6,
    normalize: bool = False,
    bias: Float[Array, " C_out"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """Convolve points with a kernel that is a continuous function of the relative position.

    ``y(q) = 1/n(q) sum over i of a(|r|^2) W(map(r)) x_i`` with ``r = (p_i - q) / radius``, where
    neighbor i of the query q has position ``p_i`` and features ``x_i``. W is a grid of matrices on
    the cube ``[-1, 1]^D``, interpolated linearly. The corners of the grid are the corners of the
    cube. The mapping takes the ball of neighbors onto the cube.

    Args:
      points: input with C channels and D axes, 1 to 3.
      weight: ``[*T, C, C_out]``: T matrices along each axis of the positions.
      neighbors: neighbors of the queries among the points, from ``vx.radius_search`` with this
        radius. A neighbor beyond the radius reads the cube's surface (where ``poly6`` is zero).
      queries: points of the output; None takes ``points``.
      radius: radius of the ball, in the unit of the positions; may be traced.
      mapping: ``volume_preserving``, which maps the ball to a cylinder and the cylinder to the
        cube; ``radial``, which stretches along rays; or ``identity``. With one axis all three are
        the identity.
      window: function a. It gets ``|r|^2``, ``float[m, k]`` for m queries with k neighbors each,
        and returns factors of this shape. None is 1.
      normalize: whether to divide by n, the sum of the window's factors, where it is not zero.
      bias: ``[C_out]`` or None.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      The queries with ``C_out`` channels in the promoted dtype of features and weight, accumulated
      in at least float32. Differentiable in features, weight, bias, radius and the positions of
      points and queries; at kinks of the mapping and of the interpolation, the derivative is
      one-sided. Queries are computed block by block, so memory does not grow with (points) times
      (taps).

    Raises:
      InputError: shapes or dtypes differ from those above, the radius is not above 0, or the
        mapping is unknown.

    Source: Ummenhofer et al., "Lagrangian Fluid Simulation with Continuous Convolutions", ICLR
    2020; the mapping of Griepentrog et al., "A bi-Lipschitz continuous, volume preserving map from
    the unit ball onto a cube", 2008.
    """
    ndim = points.ndim
    if ndim > 3:
        raise InputError(f"points of {ndim} axes: continuous_conv has 1 to 3")
    if weight.ndim != ndim + 2:
        raise InputError(
            f"weight of shape {tuple(weight.shape)}: expected [*T, C, C_out] with {ndim} sizes T, "
            "one for each axis of the positions"
        )
    check_known("mapping", mapping, get_args(Mapping))
    check_positive("radius", radius)
    shape = weight.shape[:ndim]

    def coefficients(around: Around) -> jax.Array:
        places = around.places / jnp.asarray(radius, around.places.dtype)
        # The coefficients are the outer product of one hat function for each axis.
        cube = jnp.clip(to_cube(places, mapping), -1, 1)
        taps = jnp.ones((*places.shape[:-1], 1), places.dtype)
        for axis, size in enumerate(shape):
            at = (cube[..., axis] + 1) / 2 * (size - 1)
            nodes = jnp.arange(size, dtype=places.dtype).reshape(1, 1, size)
            hat = jnp.maximum(1 - jnp.abs(at[..., None] - nodes), 0)
            taps = (taps[..., :, None] * hat[..., None, :]).reshape(*places.shape[:-1], -1)
        factor = jnp.ones(places.shape[:-1], places.dtype)
        if window is not None:
            factor = window(jnp.sum(places**2, axis=-1))
        factor = jnp.where(around.exists, factor, jnp.zeros((), factor.dtype))
        if normalize:
            total = jnp.sum(factor, axis=1, keepdims=True)
            factor = jnp.where(total != 0, factor / jnp.where(total != 0, total, 1), 0)
        return taps * factor[..., None].astype(taps.dtype)

    return neighbor_conv(
        points,
        queries,
        neighbors,
        flat(weight, shape),
        coefficients,
        bias=bias,
        precision=precision,
    )


def to_cube(places: jax.Array, mapping: Mapping) -> jax.Array:
    """Map ``places [..., D]`` in the unit ball to the cube ``[-1, 1]^D``, for D of 1 to 3.

    With ``mapping="identity"``, or one axis, the positions do not change. Other mappings cover the
    whole cube.
    """
    ndim = places.shape[-1]
    if mapping == "identity" or ndim == 1:
        return places
    if mapping == "radial":
        longest = jnp.max(jnp.abs(places), axis=-1)
        scale = _ratio(length(places), longest)
        return places * scale[..., None]
    if ndim == 2:
        return jnp.stack(_disc_to_square(places[..., 0], places[..., 1]), axis=-1)
    x, y, z = (places[..., axis] for axis in range(3))
    radius, flat_radius = length(places), length(places[..., :2])
    cap = 5 / 4 * z**2 > flat_radius**2
    # Where a branch does not apply, it is computed from a harmless number.
    share = _ratio(3 * radius, radius + jnp.abs(z))
    tall = jnp.sqrt(jnp.where(cap & (share > 0), share, 1))
    scale = jnp.where(cap, tall, _ratio(radius, jnp.where(cap, 1, flat_radius)))
    height = jnp.where(cap, jnp.sign(z) * radius, 3 / 2 * z)
    return jnp.stack([*_disc_to_square(x * scale, y * scale), height], axis=-1)


def _disc_to_square(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Map points ``(x, y)`` of a disc to the square around it; return the new x and y.

    The disc is centered at the origin, with any radius. All areas grow by the same factor.
    """
    radius = length(jnp.stack([x, y], axis=-1))
    wide = jnp.abs(y) <= jnp.abs(x)
    first, second = jnp.where(wide, x, y), jnp.where(wide, y, x)
    along = jnp.where(first < 0, -radius, radius)
    across = along * (4 / math.pi) * jnp.arctan(_ratio(second, first))
    return jnp.where(wide, along, across), jnp.where(wide, across, along)


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a / b``, zero where b is zero."""
    divides = b != 0
    return jnp.where(divides, a / jnp.where(divides, b, 1), 0)


_RELAXATION_STEPS = 2000


def kernel_point_positions(
    number: int, ndim: int = 3, *, radius: float = 1.0
) -> Float[np.ndarray, "K D"]:
    """Return kernel points ``float64[number, ndim]``: one in the center, the others far apart.

    The points minimize the sum over pairs of ``1 / distance`` plus the sum of squared norms. They
    are then scaled so that the mean norm of all except the center is ``radius``. The minimization
    runs on the host and starts from random positions of a fixed seed, so every call returns the
    same points.

    Args:
      number: static number of points, at least 1; 15 is usual in three axes.
      ndim: number of axes, 1 to 4.
      radius: mean distance from the center, in the unit of the positions; KPConv takes 1.5 times
        the extent.

    Raises:
      InputError: ``number`` is below 1, or ``ndim`` is not 1 to 4.

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
    for turn in range(_RELAXATION_STEPS):
        between = places[:, None] - places[None]
        apart = np.maximum(np.linalg.norm(between, axis=-1), 1e-3) + np.eye(number)
        force = np.sum(between / apart[..., None] ** 3, axis=1) - 2 * places
        # Steps of bounded length that shrink: no overshoot where two points start together.
        size = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-12)
        step = np.minimum(0.1 * size, 0.3 * (1 - turn / _RELAXATION_STEPS))
        places[1:] += (step * force / size)[1:]
    return places


Influence = Literal["linear", "gaussian", "constant"]


@checked_operator
def kernel_point_conv(
    points: Points,
    weight: Float[Array, "K C C_out"],
    neighbors: Neighbors,
    kernel_points: Float[Array, "K D"],
    queries: Points | None = None,
    *,
    extent: float | Num[Array, ""],
    offsets: Float[Array, "M K D"] | None = None,
    modulation: Float[Array, "M K"] | None = None,
    influence: Influence = "linear",
    bias: Float[Array, " C_out"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """Convolve points with a weight matrix at each kernel point around a query (KPConv).

    ``y(q) = sum over i, k of h(|p_i - q - (kp_k + offset_k(q))|) m_k(q) W_k x_i``, where neighbor i
    of the query q has position ``p_i`` and features ``x_i``, and ``kp_k`` is kernel point k.

    Args:
      points: input with C channels and D axes.
      weight: ``[K, C, C_out]``.
      neighbors: neighbors of the queries among the points, from ``vx.radius_search`` or
        ``vx.knn_search``.
      kernel_points: ``float[K, D]``, positions relative to the query, in the unit of the positions;
        see :func:`voxax.nn.functional.kernel_point_positions`.
      queries: M points of the output; None takes ``points``.
      extent: distance sigma, in the positions' unit, beyond which ``linear`` influence is 0; may be
        traced.
      offsets: ``[M, K, D]``, displacements of each query's kernel points; None is a rigid kernel.
      modulation: ``[M, K]``, factors m of each query's kernel points; None is 1.
      influence: function h of a distance d. ``linear``: ``max(0, 1 - d / sigma)``. ``gaussian``: a
        Gaussian of standard deviation ``0.3 sigma``, 1 at d = 0. ``constant``: 1.
      bias: ``[C_out]`` or None.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      The queries with ``C_out`` channels in the promoted dtype of features and weight, accumulated
      in at least float32. Differentiable in every float array and the positions of points and
      queries, to any order. Where a neighbor lies on a kernel point, the slope of the distance is
      zero.

    Raises:
      InputError: shapes or dtypes differ from those above, the extent is not above 0, or the
        influence is unknown.

    Source: Thomas et al., "KPConv: Flexible and Deformable Convolution for Point Clouds", ICCV
    2019.
    """
    number = weight.shape[0]
    rows = (points if queries is None else queries).capacity
    check_known("influence", influence, get_args(Influence))
    check_positive("extent", extent)
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


@checked_operator
def kernel_point_penalty(
    points: Points,
    neighbors: Neighbors,
    kernel_points: Float[Array, "K D"],
    offsets: Float[Array, "M K D"],
    queries: Points | None = None,
    *,
    extent: float | Num[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return losses that keep deformed kernel points near the cloud and apart from each other.

    Args:
      points, neighbors, kernel_points, offsets, queries, extent: as for
        :func:`kernel_point_conv`.

    Returns:
      Two scalars, means over the queries. The fitting loss sums over the kernel points the square
      of (distance to the nearest neighbor) / ``extent``. The repulsive loss sums over the ordered
      pairs of kernel points the square of ``max(0, 1 - distance / extent)``.

    Raises:
      InputError: shapes or dtypes differ from those above, or the extent is not above 0.

    Source: equations 9 and 10 of Thomas et al., "KPConv", ICCV 2019, with means over the points in
    place of sums.
    """
    queries = points if queries is None else queries
    check_neighbors(points, queries, neighbors)
    check_positive("extent", extent)
    number = kernel_points.shape[0]
    check_shape("kernel_points", kernel_points, (number, points.ndim))
    check_shape("offsets", offsets, (queries.capacity, number, points.ndim))

    def block(part: tuple) -> jax.Array:
        around = around_queries(points, *part)
        places = around.places
        reach = jnp.asarray(extent, places.dtype)
        nodes = _nodes(kernel_points, around.extra, places.dtype)
        squares = jnp.sum((places[:, :, None] - nodes[:, None]) ** 2, axis=-1)
        squares = jnp.where(around.exists[..., None], squares, jnp.inf)
        nearest = jnp.min(squares, axis=1, initial=jnp.inf)
        nearest = jnp.where(jnp.isfinite(nearest), nearest, 0)
        apart = length(nodes[:, :, None] - nodes[:, None])
        h = jnp.maximum(1 - apart / reach, 0) * (1 - jnp.eye(number, dtype=places.dtype))[None]
        return jnp.stack([jnp.sum(nearest, 1) / reach**2, jnp.sum(h**2, (1, 2))], axis=-1)

    elements = neighbors.capacity * number + number**2
    losses = in_blocks(
        block, elements, neighbors.rows, queries.positions_from(points.origin), offsets
    )
    valid = queries.valid
    losses = jnp.where(valid[:, None], losses, jnp.zeros((), losses.dtype))
    number_of_queries = jnp.maximum(queries.count, 1).astype(losses.dtype)
    fitting, repulsive = jnp.sum(losses, axis=0) / number_of_queries
    return fitting, repulsive


def _nodes(kernel_points: jax.Array, offsets: jax.Array | None, dtype) -> jax.Array:
    """Return the positions of the kernel points of m queries, ``[m, K, D]`` in ``dtype``.

    They are ``kernel_points [K, D]`` plus ``offsets [m, K, D]``. If ``offsets`` is None, the
    kernel points are the same for all queries, and the result is ``[1, K, D]``.
    """
    nodes = kernel_points.astype(dtype)[None]
    return nodes if offsets is None else nodes + offsets.astype(dtype)
