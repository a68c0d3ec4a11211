"""Order voxels along space-filling curves, for example for serialized attention."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from voxax._array_types import Array, Int32
from voxax.coords import COORD_LIMIT, CURVES, PAD, Curve, sort_by_curve
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.voxels import Voxels


class CurveOrder(NamedTuple):
    """An order of the rows of voxels along a curve, the result of :func:`curve_order`.

    Attributes:
      order: ``int32[capacity]``, the voxel rows in the order in which the curve visits them:
        ``features[order]`` is sorted along the curve.
      inverse: ``int32[capacity]``, the index of each voxel row in ``order``:
        ``features[order][inverse]`` is ``features``.
    """

    order: Int32[Array, " capacity"]
    inverse: Int32[Array, " capacity"]


@checked_operator
def curve_order(
    voxels: Voxels, curve: Curve = "morton", *, transposed: bool = False, fitted: bool = False
) -> CurveOrder:
    """Order the rows of ``voxels`` along a curve: scene by scene, padding last.

    Args:
      voxels: the voxels; only their coordinates are read.
      curve: ``"lexicographic"`` (the order that the rows have), ``"morton"`` (Z-order: bits of all
        axes interleaved) or ``"hilbert"`` (consecutive cells are neighbors; Skilling 2004).
      transposed: True exchanges the first two axes of the curve.
      fitted: True starts the curve of each scene in the scene's lowest corner and fills the
        smallest cube of edge ``2**n`` that contains the scene, as Point Transformer V3 does. False
        takes one curve through the whole coordinate range, so that the order of two voxels does
        not depend on other voxels.

    Raises:
      InputError: the curve is unknown, or ``transposed`` is True for 1-D voxels.

    Examples:
      >>> vx.curve_order(voxels, "hilbert").order.dtype
      dtype('int32')
    """
    check_known("curve", curve, CURVES)
    if transposed and voxels.geometry.ndim < 2:
        raise InputError("transposed=True exchanges the first two axes; the voxels are 1-D")
    if curve == "lexicographic" and not transposed:
        rows = jnp.arange(voxels.capacity, dtype=jnp.int32)
        return CurveOrder(rows, rows)
    geometry = voxels.geometry

    def build() -> CurveOrder:
        coords = geometry.coords
        if transposed:
            axes = (0, 2, 1, *range(3, coords.shape[1]))
            coords = coords[:, jnp.asarray(axes)]
        if fitted:
            coords = _fitted(coords, batch_size=geometry.batch_size)
        order = sort_by_curve(coords, curve)
        return CurveOrder(order, inverse_of(order))

    key = ("curve_order", curve, transposed, fitted)
    return geometry.memo.get_or_build(key, geometry.arrays, build)


@functools.partial(jax.jit, static_argnames="batch_size")
def _fitted(coords: jax.Array, batch_size: int) -> jax.Array:
    """Return ``coords`` with each scene moved and scaled up inside the coordinate range.

    The lowest corner of a scene moves to the lowest corner of the range. The scale is the largest
    power of two for which the scene stays inside the range.
    """
    valid = (coords[:, 0] != PAD)[:, None]
    scene = jnp.where(valid[:, 0], coords[:, 0], batch_size)
    shape = (batch_size, coords.shape[1] - 1)
    low = jnp.full(shape, PAD, jnp.int32).at[scene].min(coords[:, 1:], mode="drop")
    extent = jnp.where(valid, coords[:, 1:] - low.at[scene].get(mode="clip"), 0)
    largest = jnp.zeros(shape[:1], jnp.int32).at[scene].max(jnp.max(extent, 1), mode="drop")
    # Leading zero bits of the largest extent, without the sign bit.
    unused = jnp.minimum(jax.lax.clz(largest) - 1, 30)
    moved = jnp.left_shift(extent, unused.at[scene].get(mode="clip")[:, None]) - COORD_LIMIT
    return jnp.where(valid, jnp.concatenate([coords[:, :1], moved], axis=1), PAD)


@jax.jit
def inverse_of(order: jax.Array) -> jax.Array:
    """Return the inverse of the permutation ``order int32[N]``."""
    rows = jnp.arange(order.shape[0], dtype=jnp.int32)
    return jnp.zeros_like(order).at[order].set(rows, unique_indices=True)
