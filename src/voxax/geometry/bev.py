"""Bird's-eye view: merge the voxels of each vertical column into one voxel."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from voxax.coords import COORD_LIMIT, PAD
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.eager import in_either, known_on_cpu
from voxax.geometry.origin import Origin
from voxax.geometry.regroup import (
    gather_rows,
    new_geometry,
    reduce_rows,
    source_rows,
    unique_sites,
)
from voxax.geometry.voxels import Voxels
from voxax.hardware.cpu import check_host_memory

BevReduction = Literal["sum", "mean", "max", "min", "concat"]
BEV_REDUCTIONS = ("sum", "mean", "max", "min", "concat")


@checked_operator
def to_bev(
    voxels: Voxels,
    axis: int = -1,
    *,
    reduction: BevReduction = "sum",
    extent: Sequence[int] | None = None,
    capacity: int | None = None,
) -> Voxels:
    """Remove one spatial axis by merging each column of voxels along it into one voxel.

    Args:
      voxels: voxels of D axes, D from 2 to 4.
      axis: the spatial axis to remove, from 0 to D - 1. Negative numbers count from the last
        axis, which is the vertical axis in LiDAR data.
      reduction: how features merge. ``"sum"``, ``"mean"``, ``"max"`` and ``"min"`` reduce over
        the voxels of a column. ``"concat"`` concatenates the C channels of every height in
        ``extent``, lowest first, with zeros where the column has no voxel.
      extent: static ``(low, high)`` along the axis, in lattice coordinates at the voxels' stride.
        Voxels outside ``low <= coordinate < high`` are left out. None takes all voxels;
        ``"concat"`` needs an extent.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and the input's capacity under ``jax.jit``.

    Returns:
      Voxels of D - 1 axes with ``C`` channels, or ``(high - low) * C`` channels for ``"concat"``.
      Their stride, voxel size and origin lack the removed axis too.

    Raises:
      InputError: the voxels are 1-D, the axis or reduction is unknown, ``extent`` is not
        ``low < high``, or ``"concat"`` has no extent, or one of too many rows or bytes.
      CapacityError: in an eager call, the columns do not fit ``capacity``. Under ``jax.jit``,
        columns that do not fit are counted in ``num_dropped``.

    Examples:
      >>> vx.to_bev(voxels, reduction="max").geometry.ndim
      2
    """
    source = voxels.geometry
    ndim = source.ndim
    check_known("reduction", reduction, BEV_REDUCTIONS)
    if ndim < 2:
        raise InputError("to_bev folds one of at least two axes, the voxels are 1-D")
    if not -ndim <= operator.index(axis) < ndim:
        raise InputError(f"axis={axis} of {ndim}-D voxels: give one from {-ndim} to {ndim - 1}")
    axis %= ndim
    bounds = None if extent is None else _bounds(extent)
    slabs = 0 if bounds is None else bounds[1] - bounds[0]
    if reduction == "concat" and not slabs:
        raise InputError(
            "to_bev with reduction='concat' needs extent=(low, high): it fixes the number of "
            "channels, which is static"
        )
    columns, height = _columns(source.coords, axis, bounds)
    found = unique_sites(columns, capacity)
    size = found.coords.shape[0]
    if reduction == "concat":
        width = slabs * voxels.num_channels
        what, fix = f"to_bev into [{size}, {width}]", "give an extent of fewer cells"
        if size * slabs > 2**31 - 1:
            raise InputError(f"{what} is beyond 32-bit row numbers: {fix}")
        if known_on_cpu(source.coords):
            each = width * voxels.features.dtype.itemsize + 4 * slabs
            check_host_memory(what, size * each, fix)
        features = _slabs(voxels.features, found.inverse, height, slabs, size)
    else:
        features = reduce_rows(voxels.features, found.inverse, size, reduction)

    def without_axis(values: tuple) -> tuple:
        return values[:axis] + values[axis + 1 :]

    geometry = new_geometry(found, [source], stride=without_axis(source.stride))
    kept = without_axis(tuple(range(ndim)))
    origin = voxels.origin.axes(kept) if isinstance(voxels.origin, Origin) else ()
    return Voxels(geometry, features, without_axis(voxels.voxel_size), origin)


def _bounds(extent: Sequence[int]) -> tuple[int, int]:
    low, high = (operator.index(v) for v in extent)
    if not -COORD_LIMIT <= low < high <= COORD_LIMIT:
        raise InputError(
            f"extent={(low, high)} must be (low, high) with -2**30 <= low < high <= 2**30"
        )
    return low, high


@in_either("axis", "bounds")
def _columns(
    xp: Any, coords: Any, axis: int, bounds: tuple[int, int] | None
) -> tuple[jax.Array, jax.Array]:
    """Return coordinates ``int32[N, 1 + D]`` without one axis, and the coordinate along it.

    The results are ``int32[N, D]`` and ``int32[N]``. If ``bounds = (low, high)`` is given, rows
    outside ``low <= coordinate < high`` become padding in the first result, and ``low`` is
    subtracted from the second.
    """
    along = coords[:, 1 + axis]
    columns = xp.concatenate([coords[:, : 1 + axis], coords[:, 2 + axis :]], axis=1)
    if bounds is None:
        return columns, along
    inside = (along >= bounds[0]) & (along < bounds[1])
    return xp.where(inside[:, None], columns, PAD), along - bounds[0]


def _slabs(
    features: jax.Array, inverse: jax.Array, height: jax.Array, slabs: int, capacity: int
) -> jax.Array:
    """Return ``[capacity, slabs * C]``: for each column, the features of all heights side by side.

    Row n of ``features [N, C]`` goes to output row ``inverse[n]``, into the block of C channels
    with index ``height[n]``. Rows whose ``inverse`` is -1 are left out. No two rows have the same
    target, and blocks without a row are zero.
    """
    places = _slab_places(inverse, height, slabs)
    return _side_by_side(gather_rows(features, source_rows(places, capacity * slabs)), slabs)


@in_either("slabs")
def _slab_places(xp: Any, inverse: Any, height: Any, slabs: int) -> Any:
    return xp.where(inverse < 0, np.int32(-1), inverse * np.int32(slabs) + height)


@in_either("slabs")
def _side_by_side(xp: Any, features: Any, slabs: int) -> Any:
    del xp
    return features.reshape(-1, slabs * features.shape[1])
