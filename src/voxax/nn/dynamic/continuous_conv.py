"""Convolution of point clouds with a kernel that is a continuous function of the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.neighbors import Neighbors
from voxax.geometry.points import Points
from voxax.nn.dynamic.dynamic_conv import flat
from voxax.nn.dynamic.neighbor_conv import Around, length, neighbor_conv

Mapping = Literal["volume_preserving", "radial", "identity"]
MAPPINGS = ("volume_preserving", "radial", "identity")
Window = Callable[[jax.Array], jax.Array]


def poly6(squares: jax.Array) -> jax.Array:
    """Return the window ``(1 - q)^3`` of ``q = r^2 / R^2``, zero beyond.

    Args:
      squares: ``float[...]``, q of each neighbor.

    Returns:
      ``float[...]``, 1 at the center.

    Source: Müller et al., "Particle-based fluid simulation for interactive applications", 2003.
    """
    return jnp.maximum(1 - squares, 0) ** 3


def continuous_conv(
    points: Points,
    weight: jax.Array,
    neighbors: Neighbors,
    queries: Points | None = None,
    *,
    radius: float | jax.Array,
    mapping: Mapping = "volume_preserving",
    window: Window | None = poly6,
    normalize: bool = False,
    bias: jax.Array | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Points:
    """Convolve points with a kernel that is a continuous function of the place.

    ``y(q) = 1/n(q) sum over i of a(|r|^2) W(map(r)) x_i`` with ``r = (p_i - q) / radius``. W is a
    grid of matrices on the cube ``[-1, 1]^D``, corners on the cube's corners, linearly
    interpolated; the mapping takes the ball of neighbors onto the cube.

    Args:
      points: C channels, D axes, 1 to 3.
      weight: ``[*T, C, C_out]``, one size for each axis of the positions, in their order.
      neighbors: of the queries among the points, by ``vx.radius_search`` with this radius. What
        lies beyond the radius is read at the cube's surface (and ``poly6`` is zero there).
      queries: where to; None takes the points.
      radius: of the ball; may be traced.
      mapping: ``volume_preserving``, from ball over cylinder to cube; ``radial``, which stretches
        along rays; ``identity``. In one axis all are the identity.
      window: from ``|r|^2``, ``float[m, k]``, to factors; None is 1.
      normalize: divide by the sum of the window's factors, where that is not zero.
      bias: ``[C_out]`` or None.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      The queries with ``C_out`` channels in the promoted dtype of features and weight, accumulated
      in at least float32. Differentiable in features, weight, bias, radius and both positions (on
      the seams of the mapping and of the grid, from one side). Queries go block by block: memory
      does not grow with (points) times (taps).

    Raises:
      InputError: shapes, dtypes or a mapping that do not fit.

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
    if mapping not in MAPPINGS:
        raise InputError(f"unknown mapping {mapping!r}; known: {', '.join(MAPPINGS)}")
    shape = weight.shape[:ndim]

    def coefficients(around: Around) -> jax.Array:
        places = around.places / jnp.asarray(radius, around.places.dtype)
        # One after the other along each axis: the outer product of hats.
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
        factor = jnp.where(around.there, factor, jnp.zeros((), factor.dtype))
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
    """Map the unit ball ``float[..., D]``, D 1 to 3, onto the cube ``[-1, 1]^D``."""
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
    # Where the other branch holds, each is computed of a harmless number.
    share = _ratio(3 * radius, radius + jnp.abs(z))
    tall = jnp.sqrt(jnp.where(cap & (share > 0), share, 1))
    scale = jnp.where(cap, tall, _ratio(radius, jnp.where(cap, 1, flat_radius)))
    height = jnp.where(cap, jnp.sign(z) * radius, 3 / 2 * z)
    return jnp.stack([*_disc_to_square(x * scale, y * scale), height], axis=-1)


def _disc_to_square(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Map a disc onto a square, sectors onto its four triangles; areas keep their ratio."""
    radius = length(jnp.stack([x, y], axis=-1))
    wide = jnp.abs(y) <= jnp.abs(x)
    first, second = jnp.where(wide, x, y), jnp.where(wide, y, x)
    along = jnp.where(first < 0, -radius, radius)
    across = along * (4 / math.pi) * jnp.arctan(_ratio(second, first))
    return jnp.where(wide, along, across), jnp.where(wide, across, along)


def _ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a / b``, zero where b is zero."""
    there = b != 0
    return jnp.where(there, a / jnp.where(there, b, 1), 0)
