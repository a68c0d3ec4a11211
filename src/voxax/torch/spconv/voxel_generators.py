"""``spconv.utils``: points to voxels on arrays, as data pipelines call it."""

from __future__ import annotations

from contextlib import nullcontext as nullcontext
from typing import Any

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
from voxax.torch.spconv.ops import CPU_ONLY_BUILD as CPU_ONLY_BUILD
from voxax.torch.spconv.tensorview import Tensor
from voxax.torch.spconv.utils import PointToVoxel

__all__ = ["tv"]


class _Point2VoxelCPU(PointToVoxel):
    """:class:`voxax.torch.spconv.utils.PointToVoxel` on arrays, of one number of dimensions."""

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return the first three of :meth:`generate_voxel_with_id`.

        Points are an array or a :class:`~voxax.torch.spconv.tensorview.Tensor`.
        """
        del clear_voxels
        return self._voxels(pc, empty_mean=False)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True) -> tuple[Tensor, ...]:
        """As :meth:`point_to_voxel`; places without a point hold the mean of their cell's."""
        del clear_voxels
        return self._voxels(pc, empty_mean=True)

    def _voxels(self, pc: Any, empty_mean: bool) -> tuple[Tensor, Tensor, Tensor]:
        array = pc.numpy() if hasattr(pc, "numpy") else np.asarray(pc)
        points = torch.from_numpy(np.ascontiguousarray(array, np.float32))
        voxels, indices, numbers = self(points, empty_mean=empty_mean)
        return Tensor(voxels.numpy()), Tensor(indices.numpy()), Tensor(numbers.numpy())


KINDS = tuple(
    type(f"Point2VoxelCPU{ndim}d", (_Point2VoxelCPU,), {"NDIM": ndim, "__module__": __name__})
    for ndim in range(1, 5)
)
"""By number of dimensions."""
Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d, Point2VoxelCPU4d = KINDS
