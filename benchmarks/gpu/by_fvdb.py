"""fVDB on a GPU: its plans, in the order of voxels of its grid."""

from __future__ import annotations

from typing import Any

import fvdb
import fvdb.nn
import numpy as np
import torch
from benchmarks.gpu import by_torch
from benchmarks.gpu.rows import Row


def versions() -> dict[str, str]:
    return {"fVDB": getattr(fvdb, "__version__", "unknown"), "PyTorch": torch.__version__}


class FVDB:
    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        del x
        cells = fvdb.JaggedTensor(coords[:, 1:].contiguous())
        grid = fvdb.GridBatch.from_ijk(cells, voxel_sizes=1, origins=0)
        plan = fvdb.ConvolutionPlan.from_grid_batch(
            kernel_size=3, stride=1, source_grid=grid, target_grid=grid
        )
        return grid, plan

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return fvdb.nn.SparseConv3d(channels, channels, 3, bias=bias)

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        grid, plan = sites
        return sites, layer(grid.jagged_like(x), plan).jdata


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    return by_torch.measured(FVDB(), row, cloud)
