"""Training targets of center-based detectors: heat maps of box centers, and box codes.

Source: Yin, Zhou and Krähenbühl, "Center-based 3D Object Detection and Tracking", CVPR 2021; for
sparse maps Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking",
CVPR 2023.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool, Int, Num
from voxax.detection.bev_grid import BevGrid, encode_boxes
from voxax.detection.boxes import as_boxes, as_classes, as_floats, as_mask, check_rows, check_table
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import checked_operator


class CenterTargets(NamedTuple):
    """Training targets of one scene with ``M`` rows of boxes.

    Attributes:
      heatmap: ``[X, Y, classes]`` for a dense map, ``[P, classes]`` for sparse cells; 1 at the
        cell of a box, falling to 0 around it.
      rows: ``int32[M]``, the row of each box's cell in the flattened map; 0 where ``mask`` is
        false.
      codes: ``[M, 8]`` or ``[M, 10]``, see :func:`voxax.detection.encode_boxes`; 0 where ``mask``
        is false. An unknown velocity stays NaN.
      mask: ``bool[M]``, the boxes to predict. These have a class, sizes above 0, and a center in
        the grid.
    """

    heatmap: jax.Array
    rows: jax.Array
    codes: jax.Array
    mask: jax.Array


def gaussian_radius(length: Any, width: Any, min_overlap: float = 0.1) -> Any:
    """Return the radius of a box's Gaussian in the heat map, ``[...]`` in cells, as in CenterPoint.

    CornerNet computes from three quadratic equations how far a box can be shifted until its overlap
    falls to ``min_overlap``. The result is the least of their larger roots. As in CenterPoint and
    OpenPCDet, the roots are divided by 2, not by twice the leading coefficient. Where this
    coefficient is not 1, the radius therefore does not match the overlap.

    Args:
      length: ``[...]``, lengths of the boxes in cells.
      width: ``[...]``, widths of the boxes in cells.
      min_overlap: the overlap, an IoU above 0 and below 1.

    Raises:
      InputError: ``min_overlap`` is out of range.

    Source: Law and Deng, "CornerNet: Detecting Objects as Paired Keypoints", ECCV 2018.
    """
    if not 0 < min_overlap < 1:
        raise InputError(f"min_overlap={min_overlap} must lie between 0 and 1")
    (length, width) = as_floats(jnp.asarray(length), jnp.asarray(width))
    around, area, o = length + width, length * width, min_overlap
    roots = [
        0.5 * (b + jnp.sqrt(jnp.maximum(b * b - 4 * a * c, jnp.zeros((), b.dtype))))
        for a, b, c in (
            (1.0, around, area * ((1 - o) / (1 + o))),
            (4.0, 2 * around, (1 - o) * area),
            (4 * o, -2 * o * around, (o - 1) * area),
        )
    ]
    return jnp.minimum(jnp.minimum(roots[0], roots[1]), roots[2])


@checked_operator
def center_targets(
    boxes: Num[Array | np.ndarray, "M box"],
    classes: Int[Array | np.ndarray, " M"],
    grid: BevGrid,
    num_classes: int,
    *,
    min_overlap: float = 0.1,
    min_radius: int = 2,
) -> CenterTargets:
    """Return one scene's training targets on a dense map; use ``jax.vmap`` for several scenes.

    The cell of a box is the cell that contains its center. Around this cell the heat map is a
    Gaussian of standard deviation ``(2 r + 1) / 6`` within ``r`` cells, where ``r`` is
    :func:`gaussian_radius` rounded down, but at least ``min_radius``. Where Gaussians of a class
    overlap, the largest value counts.

    Args:
      boxes: ``[M, 7]`` or ``[M, 9]``.
      classes: ``int[M]``, 0 to ``num_classes - 1``; negative for rows without a box, whose values
        have no effect.
      grid: grid of the heat map.
      num_classes: static number of classes.
      min_overlap: see :func:`gaussian_radius`.
      min_radius: smallest radius of a Gaussian, in cells.

    Raises:
      InputError: wrong shapes, a number out of range, or (unless traced) invalid boxes or classes.
    """
    given = _checked(boxes, classes, num_classes, min_radius)
    cells = jnp.asarray(grid.cells())
    targets = _targets(
        *given, cells, None, grid, num_classes, min_overlap, min_radius, is_dense=True
    )
    return targets._replace(heatmap=targets.heatmap.reshape(*grid.shape, num_classes))


@checked_operator
def sparse_center_targets(
    boxes: Num[Array | np.ndarray, "M box"],
    classes: Int[Array | np.ndarray, " M"],
    cells: Int[Array | np.ndarray, "P 2"],
    grid: BevGrid,
    num_classes: int,
    *,
    valid: Bool[Array | np.ndarray, " P"] | None = None,
    min_overlap: float = 0.1,
    min_radius: int = 2,
) -> CenterTargets:
    """Return one scene's training targets at the existing cells of a sparse map.

    The cell of a box is the cell whose middle is nearest to the box's center; of equally near cells
    it is the first. The Gaussian around this cell has the standard deviation as in
    :func:`center_targets`, but no cutoff. OpenPCDet's VoxelNeXt differs in three points: it
    compares the center with the lower corners of the cells, adds by default a second Gaussian
    around the center itself, and moves a center outside of the grid to the border.

    Args:
      boxes, classes, grid, num_classes, min_overlap, min_radius: as in :func:`center_targets`.
      cells: ``int[P, 2]``, coordinates of the cells in the grid.
      valid: ``bool[P]``, true for rows with a cell, false for padding, where the heat map is 0.
        None means that all rows have a cell.

    Raises:
      InputError: wrong shapes, a number out of range, or (unless traced) invalid boxes or classes.
    """
    given = _checked(boxes, classes, num_classes, min_radius)
    cells = jnp.asarray(cells)
    if cells.ndim != 2 or cells.shape[1] != 2 or not len(cells):
        raise InputError(f"cells of shape {list(cells.shape)}: give int[P, 2] with P at least 1")
    valid = as_mask("valid", valid, len(cells), "cells")
    return _targets(
        *given, cells, valid, grid, num_classes, min_overlap, min_radius, is_dense=False
    )


def _checked(
    boxes: Any, classes: Any, num_classes: int, min_radius: int
) -> tuple[jax.Array, jax.Array]:
    boxes = jnp.asarray(boxes)
    check_table(boxes)
    check_rows("classes", classes, len(boxes), "boxes")
    classes = as_classes(classes)
    boxes = as_boxes(boxes, "boxes", classes >= 0)
    check_whole("num_classes", num_classes)
    if min_radius < 0:
        raise InputError(f"min_radius={min_radius} must be at least 0")
    if not _compat.is_traced(classes) and np.any(np.asarray(classes) >= num_classes):
        raise InputError(
            f"classes go up to {int(np.max(classes))}, outside the {num_classes} classes 0 to "
            f"{num_classes - 1}: count from 0; rows without a box are negative"
        )
    return boxes, classes.astype(jnp.int32)


@functools.partial(
    jax.jit, static_argnames=("grid", "num_classes", "min_overlap", "min_radius", "is_dense")
)
def _targets(
    boxes: jax.Array,
    classes: jax.Array,
    cells: jax.Array,
    valid: jax.Array | None,
    grid: BevGrid,
    num_classes: int,
    min_overlap: float,
    min_radius: int,
    *,
    is_dense: bool,
) -> CenterTargets:
    dtype = boxes.dtype
    usable = jnp.isfinite(boxes[:, :7]).all(axis=1) & (boxes[:, 3:6] > 0).all(axis=1)
    usable &= (classes >= 0) & (classes < num_classes)
    # The other rows are replaced, so that their values reach no result.
    boxes = jnp.where(usable[:, None], boxes, jnp.ones((), dtype))
    place = grid.places(boxes)
    size = jnp.asarray(grid.shape, dtype)[None]
    mask = usable & (place >= 0).all(axis=1) & (place < size).all(axis=1)
    if is_dense:
        home = jnp.where(mask[:, None], jnp.floor(place).astype(jnp.int32), 0)
        rows = home[:, 0] * grid.shape[1] + home[:, 1]
    else:
        assert valid is not None
        rows, mask = _nearest(place, cells, valid), mask & jnp.any(valid)
        home = cells[rows]
    side = jnp.asarray(grid.cell, dtype)[None]
    along = boxes[:, 3:5] / side
    radius = jnp.floor(gaussian_radius(along[:, 0], along[:, 1], min_overlap))
    radius = jnp.maximum(radius, jnp.asarray(min_radius, dtype))

    def draw(box: jax.Array, heat: jax.Array) -> jax.Array:
        away = cells - home[box][None]
        spread = (2 * radius[box] + 1) / 6
        squared = jnp.sum(away * away, axis=1).astype(dtype)
        value = jnp.exp(-squared / (2 * spread * spread))
        counts = mask[box]
        if is_dense:
            counts &= (jnp.abs(away) <= radius[box].astype(jnp.int32)).all(axis=1)
        else:
            counts &= valid
        value = jnp.where(counts, value, jnp.zeros((), dtype))
        # An invalid class is clipped here, and changes nothing, because its values are 0.
        row = jnp.maximum(heat[classes[box]], value)
        return jax.lax.dynamic_update_index_in_dim(heat, row, classes[box], 0)

    drawn = home, radius, mask, cells, *([] if valid is None else [valid])
    start, *_ = _compat.vary_alike(jnp.zeros((num_classes, len(cells)), dtype), classes, *drawn)
    # The loop's body is traced in any case, and could not read a box if there is none.
    heat = (jax.lax.fori_loop(0, len(boxes), draw, start) if len(boxes) else start).T
    rows = jnp.where(mask, rows, 0)
    codes = jnp.where(mask[:, None], encode_boxes(boxes, home, grid), jnp.zeros((), dtype))
    return CenterTargets(heat, rows, codes, mask)


def _nearest(place: jax.Array, cells: jax.Array, valid: jax.Array) -> jax.Array:
    """Return for each box center the row in `cells` of the nearest valid cell, ``int32[M]``.

    `place` has the centers in units of cells, ``[M, 2]``. `cells` has the integer coordinates of
    the cells along x and y, ``[P, 2]``, and `valid` the cells to consider, ``bool[P]``. The
    distance is that to the middle of a cell.
    """

    def nearest(one: jax.Array) -> jax.Array:
        squared = jnp.sum((cells.astype(one.dtype) + 0.5 - one[None]) ** 2, axis=1)
        squared = jnp.where(valid, squared, jnp.asarray(jnp.inf, one.dtype))
        return jnp.argmin(squared).astype(jnp.int32)

    return jax.lax.map(nearest, place)
