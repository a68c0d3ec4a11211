"""WarpConvNet on a GPU, with its own choice of algorithm; its map is kept with the voxels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import warpconvnet
from benchmarks.gpu import by_torch
from benchmarks.gpu.rows import Row
from warpconvnet.geometry.types.voxels import Voxels
from warpconvnet.nn.modules.sparse_conv import SparseConv3d


def versions() -> dict[str, str]:
    return {"WarpConvNet": warpconvnet.__version__, "PyTorch": torch.__version__}


class WarpConvNet:
    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Voxels:
        return Voxels([coords[:, 1:].contiguous()], [x])

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return SparseConv3d(channels, channels, kernel_size=3, bias=bias)

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        result = layer(sites.replace(batched_features=x))
        return result, result.feature_tensor


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    return by_torch.measured(WarpConvNet(), row, cloud)
