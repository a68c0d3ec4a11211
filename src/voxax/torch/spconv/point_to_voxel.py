"""Points to voxels, and results of voxels back to points."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from voxax.torch.spconv.errors import SpconvError, check_cpu, whole


class PointToVoxel:
    """Collects the points of each cell, first come, first served, as spconv does on a CPU.

    Args:
      vsize_xyz: edge lengths of a cell, one per axis.
      coors_range_xyz: low corner, then high corner.
      num_point_features: columns of the points, their coordinates first.
      max_num_voxels: points of further cells are dropped.
      max_num_points_per_voxel: further points of a cell are dropped.
      device: the CPU.

    Attributes:
      vsize, grid_size, grid_stride, coors_range: as spconv has them, in reversed order of axes.

    Raises:
      SpconvError: another device, or sizes that make no grid.
    """

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu:0",
    ) -> None:
        self.ndim = len(vsize_xyz)
        self.device = torch.device(device)
        if self.device.type != "cpu":
            raise SpconvError(f"PointToVoxel on {device}: voxax.torch.spconv runs on the CPU")
        if len(coors_range_xyz) != 2 * self.ndim or min(vsize_xyz, default=0) <= 0:
            raise SpconvError(
                f"vsize_xyz {list(vsize_xyz)} and coors_range_xyz {list(coors_range_xyz)}: "
                "expected D positive sizes and 2 D bounds"
            )
        num_point_features = whole("num_point_features", num_point_features)
        if num_point_features < self.ndim:
            raise SpconvError(
                f"num_point_features {num_point_features}: points have {self.ndim} coordinates"
            )
        # spconv's arithmetic is that of float32.
        sizes = np.asarray(vsize_xyz, np.float32)[::-1]
        low = np.asarray(coors_range_xyz[: self.ndim], np.float32)[::-1]
        high = np.asarray(coors_range_xyz[self.ndim :], np.float32)[::-1]
        grid = np.round((high - low) / sizes).astype(np.int64)
        if (grid < 1).any():
            raise SpconvError(f"coors_range_xyz {list(coors_range_xyz)} has no cell along an axis")
        self.vsize, self.grid_size = sizes.tolist(), grid.tolist()
        self.grid_stride = [int(v) for v in np.cumprod([1, *grid[:0:-1]])[::-1]]
        self.coors_range = [*low.tolist(), *high.tolist()]
        self.num_point_features = num_point_features
        self.max_num_voxels = whole("max_num_voxels", max_num_voxels)
        self.max_num_points_per_voxel = whole("max_num_points_per_voxel", max_num_points_per_voxel)

    def __call__(
        self, pc: torch.Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the first three of :meth:`generate_voxel_with_id`."""
        return self.generate_voxel_with_id(pc, clear_voxels, empty_mean)[:3]

    def generate_voxel_with_id(
        self, pc: torch.Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Collect points.

        Args:
          pc: ``[N, num_point_features]``.
          clear_voxels: accepted; places without a point are always 0 or the mean.
          empty_mean: places without a point hold the mean of their cell's. spconv adds, on a CPU,
            the mean of the cell before.

        Returns:
          ``(float32[V, P, F], int32[V, D], int32[V], int64[N])``: points of each cell, its
          coordinates in reversed order of axes, the number of points kept, and the cell of each
          point, -1 where it has none.

        Raises:
          SpconvError: points of another shape or on another device.
        """
        del clear_voxels
        check_cpu(pc, "points")
        if pc.ndim != 2 or pc.shape[1] != self.num_point_features:
            raise SpconvError(
                f"points of shape {tuple(pc.shape)}: expected [N, {self.num_point_features}]"
            )
        with torch.no_grad():
            return self._collected(pc.detach(), empty_mean)

    def _collected(
        self, pc: torch.Tensor, empty_mean: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        points = pc.numpy().astype(np.float32)
        low = np.asarray(self.coors_range[: self.ndim], np.float32)
        cells = np.floor(
            (points[:, self.ndim - 1 :: -1] - low) / np.asarray(self.vsize, np.float32)
        )
        inside = ((cells >= 0) & (cells < np.asarray(self.grid_size))).all(1)
        kept = np.nonzero(inside)[0]
        cells = cells[kept].astype(np.int64)
        keys = cells @ np.asarray(self.grid_stride, np.int64)
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")  # cells by their first point
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        voxel = place[inverse.reshape(-1)]
        number = min(len(order), self.max_num_voxels)
        chosen = voxel < number
        ids = np.full(len(points), -1, np.int64)
        ids[kept[chosen]] = voxel[chosen]
        rows, voxel = kept[chosen], voxel[chosen]
        # The rank of each point among those of its cell.
        by_voxel = np.argsort(voxel, kind="stable")
        counts = np.bincount(voxel, minlength=number)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if number else counts
        rank = np.empty_like(voxel)
        rank[by_voxel] = np.arange(len(voxel)) - starts[voxel[by_voxel]]
        fits = rank < self.max_num_points_per_voxel
        shape = number, self.max_num_points_per_voxel, self.num_point_features
        voxels = np.zeros(shape, np.float32)
        voxels[voxel[fits], rank[fits]] = points[rows[fits]]
        counts = np.minimum(counts, self.max_num_points_per_voxel).astype(np.int32)
        if empty_mean:
            mean = voxels.sum(1) / np.maximum(counts, 1).astype(np.float32)[:, None]
            empty = np.arange(shape[1]) >= counts[:, None]
            voxels = np.where(empty[:, :, None], mean[:, None, :], voxels)
        indices = cells[first[order[:number]]].astype(np.int32)
        made = voxels, indices, counts, ids
        return tuple(map(torch.from_numpy, made))  # type: ignore[return-value]


def gather_features_by_pc_voxel_id(
    seg_res_features: torch.Tensor, pc_voxel_id: torch.Tensor, invalid_value: float = 0
) -> torch.Tensor:
    """Return each point's row of its voxel's features.

    Args:
      seg_res_features: ``[V, ...]``.
      pc_voxel_id: ``int64[N]``, -1 for points without a voxel.
      invalid_value: what these get.

    Returns:
      ``[N, ...]``.
    """
    known = pc_voxel_id >= 0
    rows = seg_res_features[pc_voxel_id.clamp(min=0).long()] if len(seg_res_features) else None
    shape = pc_voxel_id.shape[0], *seg_res_features.shape[1:]
    other = seg_res_features.new_full(shape, invalid_value)
    if rows is None:
        return other
    return torch.where(known.reshape(-1, *[1] * (len(shape) - 1)), rows, other)
