"""Windows: groups of voxels by position, for attention inside each group.

Sources: Liu et al., "Swin Transformer", ICCV 2021 (shifted windows); Fan et al., "Embracing Single
Stride 3D Object Detector with Sparse Transformer", CVPR 2022 (on voxels); Zhu et al., "Cylindrical
and Asymmetrical 3D Convolution Networks for LiDAR Segmentation", CVPR 2021 (around the sensor).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np

from voxax.coords import PAD, floor_divide, sort_rows
from voxax.errors import InputError
from voxax.geometry.call_checks import axes_hint, checked_operator
from voxax.geometry.input_checks import check_voxel_size
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.order import CurveOrder, inverse_of
from voxax.geometry.voxels import Voxels


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("order", "number"), meta_fields=("most_rows",)
)
@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """A partition of the voxels of each scene into groups, called windows.

    Attributes:
      order: an order of the voxel rows: scene by scene, window by window, padding last.
      number: ``int32[capacity]``, the number of the window that contains each voxel row, counted
        from 0 through all scenes; -1 for padding. Entry i is for row i of the voxels, not for
        place i in ``order``.
      most_rows: the largest number of rows that a window can have, or None if unknown; static.
    """

    order: CurveOrder
    number: jax.Array
    most_rows: int | None


@checked_operator
def cubic_windows(
    voxels: Voxels, size: int | Sequence[int], *, shift: int | Sequence[int] = 0
) -> Windows:
    """Group voxels into boxes of ``size`` lattice cells.

    Args:
      voxels: the voxels; only their coordinates are read.
      size: edge length of a window in cells, an integer or one per axis.
      shift: offset of the windows in cells, an integer or one per axis: windows begin at
        ``-shift`` plus multiples of ``size``. Networks take half the size in every second layer.

    Raises:
      InputError: a size is below 1, a shift is no integer, or the number of axes differs.
    """
    ndim = voxels.geometry.ndim
    edges = per_axis(size, ndim, "window size")
    steps = _axes(shift, ndim)
    geometry = voxels.geometry

    def build() -> Windows:
        moved = geometry.coords[:, 1:] + jnp.asarray(steps, jnp.int32)[None, :]
        cells = floor_divide(moved, edges)
        return _grouped(geometry.coords, cells, most_rows=math.prod(edges))

    return geometry.memo.get_or_build(("windows", edges, steps), geometry.arrays, build)


@checked_operator
def cylindrical_windows(
    voxels: Voxels,
    size: tuple[float, int, float],
    *,
    center: Sequence[float] = (0.0, 0.0),
    shifted: bool = False,
) -> Windows:
    """Group voxels by their distance from an upright axis, direction around it, and height.

    Windows far from a LiDAR sensor, where points are sparse, are larger than windows near it.

    Args:
      voxels: 3-D voxels, the last axis upright; only their positions are read.
      size: ``(radius, sectors, height)``: radial length of a window, number of windows around the
        axis, and height of a window; lengths in the unit of the positions.
      center: x and y of the upright axis, in the frame of :meth:`voxax.Voxels.positions`.
      shifted: whether to move the windows by half of their size in all three directions.

    Raises:
      InputError: the voxels are not 3-D, a length or the number of sectors is not positive, or
        ``size`` or ``center`` has another number of entries.
    """
    if np.shape(size) != (3,) or np.shape(center) != (2,):
        raise InputError(
            f"size={size} and center={center}: give (radius, sectors, height) and x and y"
        )
    if voxels.geometry.ndim != 3:
        ndim = voxels.geometry.ndim
        raise InputError(
            f"cylindrical windows of {ndim}-D voxels: 3-D is needed{axes_hint(3, ndim)}"
        )
    radius, height = check_voxel_size((size[0], size[2]), 2)
    sectors = int(size[1])
    if sectors < 1 or sectors != size[1]:
        raise InputError(f"{size[1]!r} sectors: give a whole number of at least 1")
    half = 0.5 if shifted else 0.0
    positions = voxels.positions()  # float64 if they are far from zero
    places = (positions[:, axis] - corner for axis, corner in enumerate((*center, 0.0)))
    x, y, z = (jnp.asarray(place, jnp.float32) for place in places)
    turn = jnp.arctan2(y, x) / (2 * math.pi)
    parts = (jnp.sqrt(x * x + y * y) / radius, turn * sectors, z / height)
    ring, sector, layer = (jnp.floor(p + half).astype(jnp.int32) for p in parts)
    cells = jnp.stack([ring, sector % sectors, layer], axis=1)
    return _grouped(voxels.coords, cells, most_rows=None)


def _axes(value: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return ``ndim`` integers, which may be negative, from one integer or one per axis."""
    values = tuple(value) if isinstance(value, Iterable) else (value,) * ndim
    if len(values) != ndim or not all(isinstance(step, Integral) for step in values):
        raise InputError(f"shift {value!r}: expected an integer or {ndim} of them, one per axis")
    return tuple(map(int, values))


@functools.partial(jax.jit, static_argnames="most_rows")
def _grouped(coords: jax.Array, cells: jax.Array, most_rows: int | None) -> Windows:
    valid = coords[:, :1] != PAD
    keys = jnp.where(valid, jnp.concatenate([coords[:, :1], cells], axis=1), PAD)
    ordered, order = sort_rows(keys)
    begins = jnp.any(ordered[1:] != ordered[:-1], axis=1).astype(jnp.int32)
    along = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(begins, dtype=jnp.int32)])
    inverse = inverse_of(order)
    number = jnp.where(valid[:, 0], along[inverse], -1)
    return Windows(CurveOrder(order, inverse), number, most_rows)
