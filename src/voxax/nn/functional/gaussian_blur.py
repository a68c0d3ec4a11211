"""A Gaussian blur whose width is each position's own."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.grid_taps import Shifted, check_shape, grid_spec, scan_taps, zeros_of

# Below this width the neighbours' weights are zero in float64 too: exp(-1 / (2 * 0.025**2)).
_NARROWEST = 0.025


def gaussian_blur(
    x: jax.Array,
    sigma: jax.Array | float,
    *,
    radius: int | Sequence[int],
    normalize_edges: bool = False,
) -> jax.Array:
    """Blur with a Gaussian of each position's own width.

    ``y[u] = sum over |o| <= radius of w(o; sigma(u)) x[u + o]``, zero outside of the grid, where
    ``w`` are the values of the Gaussian at whole cells, scaled along each axis to sum to one. It
    gathers: the width is that of the position written, not of those read. Where sigma is constant
    it is ``scipy.ndimage.gaussian_filter(mode="constant", radius=radius)``.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      sigma: in cells: one number, ``[B, *spatial]``, or ``[B, *spatial, D]``, one per axis. Zero
        (or less) copies. Its gradient is that of the truncated, normalised Gaussian.
      radius: static, where the Gaussian is cut off, an integer or one per axis: at least four
        times the largest sigma is usual.
      normalize_edges: near the border scale what lies inside of the grid to sum to one.

    Returns:
      ``[B, *spatial, C]`` in the dtype of ``x``, summed in at least float32. Differentiable in
      both to any order. One tap after the other: memory does not grow with the radius.

    Raises:
      InputError: shapes or dtypes that do not fit, a radius below 0.
    """
    ndim = x.ndim - 2
    sides = _radii(radius, max(ndim, 1))
    spec = grid_spec(x, tuple(2 * r + 1 for r in sides), 1, 1)
    grid, wide = x.shape[:-1], accumulator(x.dtype)
    sigma = jnp.asarray(sigma)
    if not jnp.issubdtype(sigma.dtype, jnp.floating):
        sigma = sigma.astype(wide)
    if sigma.ndim == 0:
        sigma = jnp.broadcast_to(sigma, grid)
    if sigma.shape == grid:
        sigma = sigma[..., None]
    check_shape("sigma", sigma, (*grid, 1), (*grid, ndim))
    sigma = jnp.broadcast_to(jnp.maximum(sigma.astype(wide), _NARROWEST), (*grid, ndim))
    falloff = 1 / (2 * sigma**2)
    # The sum over a box is the product of the sums along its axes.
    norm = jnp.ones(grid, wide)
    for axis, side in enumerate(sides):
        along = jnp.ones(grid, wide)
        for step in range(1, side + 1):
            along = along + 2 * jnp.exp(-falloff[..., axis] * float(step * step))
        norm = norm * along

    marked = x.astype(wide)
    if normalize_edges:
        marked = jnp.concatenate([marked, jnp.ones((*grid, 1), wide)], axis=-1)
    shifted = Shifted(marked, spec)

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, squares = tap
        distance = jnp.sum(falloff * squares.reshape((1,) * len(grid) + (-1,)), axis=-1)
        return total + shifted.at(start) * jnp.exp(-distance)[..., None]

    total = zeros_of(marked.shape, wide, x, sigma)
    squares = jnp.asarray(np.square(np.asarray(spec.offsets)), wide)
    total = scan_taps(add, total, (jnp.asarray(shifted.starts), squares))
    if normalize_edges:
        # The centre is inside and weighs 1.
        y = total[..., :-1] / total[..., -1:]
    else:
        y = total / norm[..., None]
    return y.astype(x.dtype)


def _radii(radius: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    radii = (radius,) * ndim if isinstance(radius, int | np.integer) else tuple(radius)
    if any(r < 0 for r in radii):
        raise InputError(f"radius={radius} must be at least 0 along every axis")
    return tuple(r - 1 for r in per_axis(tuple(r + 1 for r in radii), ndim, "radius + 1"))
