"""The region of space that a detector covers, and its division into voxels."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxax.detection.bev_grid import BevGrid
from voxax.detection.boxes import check_numbers
from voxax.errors import InputError

# Grids of published detectors have a few million cells in the plane; wrong units give far more.
MOST_CELLS = 1 << 26


@dataclass(frozen=True)
class Region:
    """The box of space that a detector covers, divided into voxels. Static and hashable.

    Args:
      low: x, y and z of the lower corner, in meters.
      high: x, y and z of the upper corner, in meters.
      voxel_size: the sides of a voxel, in meters: one number for all axes, or three.

    Raises:
      InputError: the lower corner is not below the upper corner, a side is not positive, or there
        are more than 2**26 cells in the plane.
    """

    low: Sequence[float]
    high: Sequence[float]
    voxel_size: Sequence[float] | float

    def __post_init__(self) -> None:
        low, high = (check_numbers(name, getattr(self, name), 3) for name in ("low", "high"))
        given = self.voxel_size
        sides = [given] * 3 if isinstance(given, int | float) else given
        sides = check_numbers("voxel_size", sides, 3)
        if min(sides) <= 0:
            raise InputError(f"voxel_size={given}: sides must be positive, in meters")
        if any(b - a < side for a, b, side in zip(low, high, sides, strict=True)):
            raise InputError(
                f"low={low} and high={high}: a region begins below its end on each axis, by a "
                f"voxel of {sides} at least"
            )
        for name, value in (("low", low), ("high", high), ("voxel_size", sides)):
            object.__setattr__(self, name, value)
        if math.prod(self.grid[:2]) > MOST_CELLS:
            raise InputError(
                f"low={low}, high={high} and voxel_size={sides} make {self.grid[0]} x "
                f"{self.grid[1]} cells in the plane, more than {MOST_CELLS}: are all in meters?"
            )

    @property
    def grid(self) -> tuple[int, int, int]:
        """Numbers of voxels along x, y and z; the argument ``grid`` of voxax's detectors."""
        size = self.voxel_size
        assert isinstance(size, tuple)
        x, y, z = (
            max(round((b - a) / side), 1)
            for a, b, side in zip(self.low, self.high, size, strict=True)
        )
        return x, y, z

    def holds(self, points: Any) -> np.ndarray:
        """Return for each point whether it lies in a voxel of the region, ``bool[N]``.

        Along each axis the last thousandth of the last voxel is excluded, so that no point is
        rounded out of the grid.

        Args:
          points: ``[N, 3]`` or more columns, x, y and z first.
        """
        places = np.asarray(points, np.float64)[:, :3] - np.asarray(self.low)
        cells = places / np.asarray(self.voxel_size)
        inside = (cells >= 0) & (cells < np.asarray(self.grid) - 1e-3)
        return np.asarray(inside.all(axis=1))

    def bev(self, shape: Sequence[int], stride: int | None = None) -> BevGrid:
        """Return the ground plane grid in whose cells a detector head predicts.

        Args:
          shape: numbers of cells of the grid, ``(X, Y)``.
          stride: number of voxels per cell along x and y; None takes the power of two nearest to
            the ratio of voxels to cells along x.

        Raises:
          InputError: the stride or a number of cells is not positive.
        """
        fitting = 2 ** max(round(math.log2(self.grid[0] / operator.index(shape[0]))), 0)
        step = fitting if stride is None else stride
        size = self.voxel_size
        assert isinstance(size, tuple)
        return BevGrid(self.low[:2], [step * side for side in size[:2]], shape)
