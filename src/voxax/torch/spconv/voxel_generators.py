"""``spconv.utils``: points to voxels on arrays, as data pipelines call it."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext as nullcontext
from typing import Any, ClassVar

import numpy as np
import torch

from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.boxes import non_max_suppression_cpu as non_max_suppression_cpu
from voxax.torch.spconv.boxes import rbbox_intersection as rbbox_intersection
from voxax.torch.spconv.boxes import rbbox_iou as rbbox_iou
from voxax.torch.spconv.boxes import rbbox_iou_loss as rbbox_iou_loss
from voxax.torch.spconv.boxes import (
    rotate_non_max_suppression_cpu as rotate_non_max_suppression_cpu,
)
from voxax.torch.spconv.cppconstants import CPU_ONLY_BUILD as CPU_ONLY_BUILD
from voxax.torch.spconv.errors import SpconvError
from voxax.torch.spconv.point_to_voxel import PointToVoxel
from voxax.torch.spconv.tensorview import Tensor

__all__ = ["tv"]

_Voxels = tuple[Tensor, Tensor, Tensor]


class _Point2VoxelCPU:
    """:class:`voxax.torch.spconv.point_to_voxel.PointToVoxel` on arrays.

    Args:
      vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel: as
        there.

    Raises:
      SpconvError: sizes of another dimension, or that make no grid.
    """

    NDIM: ClassVar[int]

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
    ) -> None:
        if len(vsize_xyz) != self.NDIM:
            raise SpconvError(f"vsize_xyz {list(vsize_xyz)}: expected {self.NDIM} sizes")
        sizes = list(map(float, vsize_xyz)), list(map(float, coors_range_xyz))
        self._made = PointToVoxel(
            *sizes, num_point_features, max_num_voxels, max_num_points_per_voxel
        )
        self.vsize, self.grid_size = self._made.vsize, self._made.grid_size
        self.grid_stride, self.coors_range = self._made.grid_stride, self._made.coors_range

    @staticmethod
    def calc_meta_data(
        vsize_xyz: Sequence[float], coors_range_xyz: Sequence[float]
    ) -> tuple[list[float], list[int], list[int], list[float]]:
        """Return sizes of cells, sizes of the grid, its strides and bounds, axes reversed.

        Raises:
          SpconvError: sizes that make no grid.
        """
        return meta_data(vsize_xyz, coors_range_xyz)

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> _Voxels:
        """Collect points.

        Args:
          pc: ``[N, num_point_features]``, a :class:`~voxax.torch.spconv.tensorview.Tensor` or an
            array.
          clear_voxels: accepted; places without a point are always 0.

        Returns:
          ``(float32[V, P, F], int32[V, D], int32[V])``: points of each cell, its coordinates in
          reversed order of axes, and the number of points kept.

        Raises:
          SpconvError: points of another shape.
        """
        del clear_voxels
        return self._voxels(pc, empty_mean=False)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True) -> _Voxels:
        """As :meth:`point_to_voxel`; places without a point hold the mean of their cell's."""
        del clear_voxels
        return self._voxels(pc, empty_mean=True)

    def _voxels(self, pc: Any, empty_mean: bool) -> _Voxels:
        array = pc.numpy() if hasattr(pc, "numpy") else np.asarray(pc)
        points = torch.from_numpy(np.ascontiguousarray(array, np.float32))
        voxels, indices, numbers = self._made(points, empty_mean=empty_mean)
        return Tensor(voxels.numpy()), Tensor(indices.numpy()), Tensor(numbers.numpy())


class Point2VoxelCPU1d(_Point2VoxelCPU):
    """In one dimension; see :meth:`point_to_voxel`."""

    NDIM = 1


class Point2VoxelCPU2d(_Point2VoxelCPU):
    """In two dimensions; see :meth:`point_to_voxel`."""

    NDIM = 2


class Point2VoxelCPU3d(_Point2VoxelCPU):
    """In three dimensions; see :meth:`point_to_voxel`."""

    NDIM = 3


class Point2VoxelCPU4d(_Point2VoxelCPU):
    """In four dimensions; see :meth:`point_to_voxel`."""

    NDIM = 4


KINDS = (Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d, Point2VoxelCPU4d)
"""By number of dimensions."""


def meta_data(
    vsize_xyz: Sequence[float], coors_range_xyz: Sequence[float]
) -> tuple[list[float], list[int], list[int], list[float]]:
    """Return sizes of cells, sizes of the grid, its strides and bounds, axes reversed.

    Raises:
      SpconvError: sizes that make no grid.
    """
    sizes = list(map(float, vsize_xyz)), list(map(float, coors_range_xyz))
    made = PointToVoxel(*sizes, len(sizes[0]), 1, 1)
    return made.vsize, made.grid_size, made.grid_stride, made.coors_range
