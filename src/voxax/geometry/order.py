"""Orders of the voxels along space-filling curves, for serialized attention and the like."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.coords import CURVES, Curve, sort_by_curve
from voxax.errors import check_known
from voxax.geometry.voxels import Voxels


class CurveOrder(NamedTuple):
    """Result of :func:`curve_order`.

    Attributes:
      order: ``int32[capacity]``, the row at each place along the curve:
        ``features[order]`` follows the curve.
      inverse: ``int32[capacity]``, the place of each row: ``serial[inverse]`` is in the order
        of the voxels again.
    """

    order: jax.Array
    inverse: jax.Array


@_compat.on_whole_arrays
def curve_order(voxels: Voxels, curve: Curve = "morton") -> CurveOrder:
    """Order the rows of ``voxels`` along a curve: scene by scene, padding last.

    Args:
      voxels: the voxels; only their coordinates matter.
      curve: ``"lexicographic"`` (the order they are in), ``"morton"`` (Z-order: bits of all axes
        interleaved) or ``"hilbert"`` (consecutive cells are neighbors; Skilling 2004).

    Raises:
      InputError: an unknown curve.
    """
    check_known("curve", curve, CURVES)
    if curve == "lexicographic":
        rows = jnp.arange(voxels.capacity, dtype=jnp.int32)
        return CurveOrder(rows, rows)
    order = sort_by_curve(voxels.coords, curve)
    return CurveOrder(order, _inverse(order))


@jax.jit
def _inverse(order: jax.Array) -> jax.Array:
    rows = jnp.arange(order.shape[0], dtype=jnp.int32)
    return jnp.zeros_like(order).at[order].set(rows, unique_indices=True)
