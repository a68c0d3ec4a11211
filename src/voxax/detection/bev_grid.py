"""The grid of cells that center-based detectors predict in, and boxes in its terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxax._array_types import Array, Float, Int, Num
from voxax.detection.boxes import array_module, as_boxes, as_floats, check_integers, check_numbers
from voxax.errors import InputError
from voxax.geometry.call_checks import checked_operator


@dataclass(frozen=True)
class BevGrid:
    """Cells seen from above: ``X`` along x and ``Y`` along y. Static and hashable.

    A dense map over it has the shape ``[X, Y, channels]``; cell ``[i, j]`` begins at
    ``low + [i, j] * cell``.

    Args:
      low: x and y of the corner where the grid begins, in meters.
      cell: the sides of a cell along x and y in meters: voxel size times stride.
      shape: numbers of cells, ``(X, Y)``.

    Raises:
      InputError: a side or a number that is not positive.
    """

    low: Sequence[float]
    cell: Sequence[float]
    shape: Sequence[int]

    def __post_init__(self) -> None:
        cell = check_numbers("cell", self.cell, 2)
        shape = check_integers("shape", self.shape, 2)
        if min(cell) <= 0:
            raise InputError(f"cell={self.cell}: sides must be positive, in meters")
        if min(shape) < 1:
            raise InputError(f"shape={self.shape}: give two numbers of cells, each at least 1")
        object.__setattr__(self, "low", check_numbers("low", self.low, 2))
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "shape", shape)

    def places(self, boxes: Any) -> Any:
        """Return the centers of boxes in cells, ``[..., 2]``: an integer is where a cell begins.

        Args:
          boxes: ``[..., 2]`` or more columns, x and y first; NumPy in, NumPy out.

        Raises:
          InputError: they are no real numbers.
        """
        (boxes,) = as_floats(boxes)
        xp = array_module(boxes)
        low, cell = (xp.asarray(v, boxes.dtype) for v in (self.low, self.cell))
        shape = (1,) * (boxes.ndim - 1) + (2,)
        return (boxes[..., :2] - low.reshape(shape)) / cell.reshape(shape)

    def cells(self) -> np.ndarray:
        """Return all cells, ``int32[X * Y, 2]``, in the order of a dense map's rows."""
        return np.moveaxis(np.indices(self.shape), 0, -1).reshape(-1, 2).astype(np.int32)


@checked_operator
def encode_boxes(
    boxes: Num[Array | np.ndarray, "... box"],
    cells: Int[Array | np.ndarray, "... 2"],
    grid: BevGrid,
) -> Float[Any, "... code"]:
    """Return what a network predicts for boxes at cells, ``[..., 8]`` or ``[..., 10]``.

    The second with velocity. Columns: offset of the center from the cell's beginning along x and y,
    in cells; z in meters; the logarithms of length, width and height; cosine and sine of yaw; vx
    and vy. This is the order of OpenPCDet's heads.

    Args:
      boxes: ``[..., 7]`` or ``[..., 9]``, sizes above 0; NumPy in, NumPy out.
      cells: ``int[..., 2]``, the cell that predicts each.
      grid: grid of the cells.

    Raises:
      InputError: other shapes, or bad boxes that are known.
    """
    boxes = as_boxes(boxes)
    xp = array_module(boxes)
    offset = grid.places(boxes) - xp.asarray(cells).astype(boxes.dtype)
    yaw = boxes[..., 6:7]
    parts = [offset, boxes[..., 2:3], xp.log(boxes[..., 3:6]), xp.cos(yaw), xp.sin(yaw)]
    return xp.concatenate([*parts, boxes[..., 7:]], axis=-1)


@checked_operator
def decode_boxes(
    codes: Num[Array | np.ndarray, "... code"],
    cells: Int[Array | np.ndarray, "... 2"],
    grid: BevGrid,
) -> Float[Any, "... box"]:
    """Return the boxes of codes, ``[..., 7]`` or ``[..., 9]``: what :func:`encode_boxes` undoes.

    Args:
      codes: ``[..., 8]`` or ``[..., 10]``; cosine and sine need not have length 1. NumPy in, NumPy
        out.
      cells: ``int[..., 2]``, the cell that predicts each.
      grid: grid of the cells.

    Raises:
      InputError: other shapes.
    """
    (codes,) = as_floats(codes)
    if codes.ndim < 1 or codes.shape[-1] not in (8, 10):
        raise InputError(
            f"codes of shape {list(codes.shape)}: give [..., 8] (offset x, y, z, log length, "
            "width, height, cos, sin), or [..., 10] with vx and vy"
        )
    xp = array_module(codes)
    shape = (1,) * (codes.ndim - 1) + (2,)
    low, cell = (xp.asarray(v, codes.dtype).reshape(shape) for v in (grid.low, grid.cell))
    center = (xp.asarray(cells).astype(codes.dtype) + codes[..., :2]) * cell + low
    cos, sin = codes[..., 6:7], codes[..., 7:8]
    # (0, 0), as of a head that begins with zeros, is the angle 0, with a finite derivative.
    cos = xp.where((cos == 0) & (sin == 0), xp.ones((), codes.dtype), cos)
    yaw = xp.arctan2(sin, cos)
    parts = [center, codes[..., 2:3], xp.exp(codes[..., 3:6]), yaw, codes[..., 8:]]
    return xp.concatenate(parts, axis=-1)
