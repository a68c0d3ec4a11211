"""Sort points into voxels, and copy features of voxels back to points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError, check_cpu, whole
from voxax.torch.core.kernel_map import distinct_rows


class PointToVoxel:
    """Voxelizer that groups points by grid cell, in the order of the input, as spconv on a CPU.

    Args:
      vsize_xyz: D edge lengths of a cell.
      coors_range_xyz: 2 D coordinates: low corner of the grid, then high corner.
      num_point_features: number of columns F of the points; the first D are the coordinates.
      max_num_voxels: largest number of cells V; points of further cells are dropped.
      max_num_points_per_voxel: largest number of points P of a cell; further points are dropped.
      device: the CPU; other devices are an error.

    Attributes:
      vsize, grid_size, grid_stride, coors_range: edges of a cell, cells along each axis, strides of
        the flat grid, and low and high corner, each in reversed order of axes.

    Raises:
      SpconvError: another device, or sizes that make no grid.
    """

    NDIM: ClassVar[int | None] = None

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu:0",
    ) -> None:
        self.ndim, self.device = len(vsize_xyz), torch.device(device)
        vsize, bounds = [*map(float, vsize_xyz)], [*map(float, coors_range_xyz)]
        if self.NDIM not in (None, self.ndim):
            raise ArgumentError(f"vsize_xyz {vsize}: expected {self.NDIM} sizes")
        if self.device.type != "cpu":
            raise ArgumentError(f"PointToVoxel on {device}: voxax.torch.spconv runs on the CPU")
        if len(bounds) != 2 * self.ndim or min(vsize, default=0) <= 0:
            raise ArgumentError(
                f"vsize_xyz {vsize} and coors_range_xyz {bounds}: expected D positive sizes and "
                "2 D bounds"
            )
        self.num_point_features = columns = whole("num_point_features", num_point_features)
        if columns < self.ndim:
            found = f"num_point_features {columns}"
            raise ArgumentError(f"{found}: points have {self.ndim} coordinates")
        # spconv's arithmetic is that of float32.
        sizes = np.asarray(vsize, np.float32)[::-1]
        low, high = np.asarray(bounds, np.float32).reshape(2, -1)[:, ::-1]
        grid = np.round((high - low) / sizes).astype(np.int64)
        if (grid < 1).any():
            raise ArgumentError(f"coors_range_xyz {bounds} has no cell along an axis")
        self.vsize, self.grid_size = sizes.tolist(), grid.tolist()
        self.grid_stride = [int(v) for v in np.cumprod([1, *grid[:0:-1]])[::-1]]
        self.coors_range = [*low.tolist(), *high.tolist()]
        self.max_num_voxels = whole("max_num_voxels", max_num_voxels)
        self.max_num_points_per_voxel = whole("max_num_points_per_voxel", max_num_points_per_voxel)

    def __call__(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the points of each cell, the cells, and the number of points in each cell.

        These are the first three results of :meth:`generate_voxel_with_id`, with its arguments.
        """
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    def generate_voxel_with_id(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the points of each cell, the cells, their point counts, and each point's cell.

        Args:
          pc: points ``[N, num_point_features]``.
          clear_voxels: ignored; each cell's P rows are always filled up with 0 or the mean.
          empty_mean: whether to fill up a cell that has fewer than P points with the mean of its
            points instead of 0. On a CPU, spconv adds the mean of the previous cell too.

        Returns:
          ``(float32[V, P, F], int32[V, D], int32[V], int64[N])``: up to P points of each of V
          cells, with F columns; the D coordinates of each cell in reversed order of axes; its
          number of points; and the cell of each point, -1 for points without a cell.

        Raises:
          SpconvError: points of another shape or on another device, or float64 points so far from
            the origin that float32 would move them to other cells.
        """
        del clear_voxels
        check_cpu(pc, "points")
        if pc.ndim != 2 or pc.shape[1] != self.num_point_features:
            found = f"points of shape {tuple(pc.shape)}"
            raise ArgumentError(f"{found}: expected [N, {self.num_point_features}]")
        far = np.abs(self.coors_range).max()
        step = np.spacing(far.astype(np.float32))
        if pc.dtype is torch.float64 and step > min(self.vsize) / 16:
            raise ArgumentError(
                f"float64 points in coors_range_xyz up to {far}: spconv's voxels are float32, "
                f"which has steps of {step} there, and cells have edges of {min(self.vsize)}. "
                "Subtract an origin from points and range"
            )
        points = pc.detach().numpy().astype(np.float32)
        low, sizes = (np.asarray(row, np.float32) for row in (self.coors_range, self.vsize))
        cells = np.floor((points[:, self.ndim - 1 :: -1] - low[: self.ndim]) / sizes)
        kept = np.nonzero(((cells >= 0) & (cells < np.asarray(self.grid_size))).all(1))[0]
        cells = cells[kept].astype(np.int64)
        keys = cells @ np.asarray(self.grid_stride, np.int64)
        first, voxel = distinct_rows(np.unique(keys, return_inverse=True))
        number = min(len(first), self.max_num_voxels)
        chosen = voxel < number
        rows, voxel = kept[chosen], voxel[chosen]
        ids = np.full(len(points), -1, np.int64)
        ids[rows] = voxel
        # The rank of each point among those of its cell.
        by_voxel = np.argsort(voxel, kind="stable")
        counts = np.bincount(voxel, minlength=number)
        starts = np.cumsum(counts) - counts
        rank = np.empty_like(voxel)
        rank[by_voxel] = np.arange(len(voxel)) - starts[voxel[by_voxel]]
        fits = rank < self.max_num_points_per_voxel
        shape = number, self.max_num_points_per_voxel, self.num_point_features
        voxels = np.zeros(shape, np.float32)
        voxels[voxel[fits], rank[fits]] = points[rows[fits]]
        counts = np.minimum(counts, shape[1]).astype(np.int32)
        if empty_mean:
            mean = voxels.sum(1) / np.maximum(counts, 1).astype(np.float32)[:, None]
            empty = np.arange(shape[1]) >= counts[:, None]
            voxels = np.where(empty[:, :, None], mean[:, None, :], voxels)
        indices = cells[first[:number]].astype(np.int32)
        return tuple(map(torch.from_numpy, (voxels, indices, counts, ids)))  # type: ignore[return-value]


def gather_features_by_pc_voxel_id(
    seg_res_features: Tensor, pc_voxel_id: Tensor, invalid_value: float = 0
) -> Tensor:
    """Copy to each of N points the features of its voxel, ``[N, ...]``.

    Args:
      seg_res_features: features of the voxels, ``[V, ...]``.
      pc_voxel_id: voxel of each point, ``int64[N]``, -1 for points without a voxel.
      invalid_value: value of all features of points without a voxel.
    """
    shape = pc_voxel_id.shape[0], *seg_res_features.shape[1:]
    other = seg_res_features.new_full(shape, invalid_value)
    if not len(seg_res_features):
        return other
    known = (pc_voxel_id >= 0).reshape(-1, *[1] * (len(shape) - 1))
    return torch.where(known, seg_res_features[pc_voxel_id.clamp(min=0).long()], other)
