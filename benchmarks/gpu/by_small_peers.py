"""FlexGEMM, WarpConvNet and fVDB on a GPU, each with its own choice of algorithm.

FlexGEMM is called as its own benchmark does. WarpConvNet keeps its map with the voxels. fVDB has
plans, in the order of voxels of its grid.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import torch
from benchmarks.gpu import by_torch
from benchmarks.gpu.rows import Row


class _Peer:
    version = ""

    def versions(self) -> dict[str, str]:
        return {type(self).__name__: self.version, "PyTorch": torch.__version__}

    def measure(self, row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
        return by_torch.measured(self, row, cloud)  # pyright: ignore[reportArgumentType]


class _FlexGEMMLayer(torch.nn.Module):
    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        shape = (channels, 3, 3, 3, channels)
        self.weight = torch.nn.Parameter(torch.randn(shape) / (27 * channels) ** 0.5)
        # Its gradients need one.
        self.bias = torch.nn.Parameter(torch.zeros(channels), requires_grad=bias)


class FlexGEMM(_Peer):
    def __init__(self) -> None:
        from flex_gemm.ops import spconv

        self.package, self.version = spconv, importlib.metadata.version("flex_gemm")

    def _shape(self, coords: torch.Tensor, x: torch.Tensor) -> torch.Size:
        scenes, *grid = (coords.amax(0) + 1).tolist()
        return torch.Size([scenes, x.shape[1], *(n + 1 for n in grid)])

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        shape = self._shape(coords, x)
        make = self.package.SubMConv3dFunction._compute_neighbor_cache
        return coords, shape, make(coords, shape, (3, 3, 3), (1, 1, 1), True)

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return _FlexGEMMLayer(channels, bias)

    def apply(self, layer: Any, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        coords, shape, made = sites
        given = x, coords, shape, layer.weight, layer.bias, made
        return sites, self.package.sparse_submanifold_conv3d(*given)[0]


class FVDB(_Peer):
    def __init__(self) -> None:
        import fvdb.nn

        self.package, self.version = fvdb, getattr(fvdb, "__version__", "unknown")

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        del x
        cells = self.package.JaggedTensor(coords[:, 1:].contiguous())
        grid = self.package.GridBatch.from_ijk(cells, voxel_sizes=1, origins=0)
        plan = self.package.ConvolutionPlan.from_grid_batch(
            kernel_size=3, stride=1, source_grid=grid, target_grid=grid
        )
        return grid, plan

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return self.package.nn.SparseConv3d(channels, channels, 3, bias=bias)

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        grid, plan = sites
        return sites, layer(grid.jagged_like(x), plan).jdata


class WarpConvNet(_Peer):
    def __init__(self) -> None:
        import warpconvnet
        from warpconvnet.geometry.types.voxels import Voxels
        from warpconvnet.nn.modules.sparse_conv import SparseConv3d

        self.version, self.voxels, self.conv = warpconvnet.__version__, Voxels, SparseConv3d

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        return self.voxels([coords[:, 1:].contiguous()], [x])

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return self.conv(channels, channels, kernel_size=3, bias=bias)

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        result = layer(sites.replace(batched_features=x))
        return result, result.feature_tensor


PEERS = {kind.__name__.lower(): kind for kind in (FlexGEMM, FVDB, WarpConvNet)}
