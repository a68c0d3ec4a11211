"""FlexGEMM on a GPU, with its default algorithm, as its own benchmark calls it."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import torch
from benchmarks.gpu import by_torch
from benchmarks.gpu.rows import Row
from flex_gemm.ops.spconv import SubMConv3dFunction, sparse_submanifold_conv3d


def versions() -> dict[str, str]:
    return {"FlexGEMM": importlib.metadata.version("flex_gemm"), "PyTorch": torch.__version__}


class _Layer(torch.nn.Module):
    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        shape = (channels, 3, 3, 3, channels)
        self.weight = torch.nn.Parameter(torch.randn(shape) / (27 * channels) ** 0.5)
        # Its gradients need one.
        self.bias = torch.nn.Parameter(torch.zeros(channels), requires_grad=bias)


class FlexGEMM:
    def __init__(self, coords: np.ndarray) -> None:
        low = coords.max(0) + 1
        self._scenes, self._grid = int(low[0]), (low[1:] + 1).tolist()

    def _shape(self, x: torch.Tensor) -> torch.Size:
        return torch.Size([self._scenes, x.shape[1], *self._grid])

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> Any:
        ones = (1, 1, 1)
        made = SubMConv3dFunction._compute_neighbor_cache(
            coords, self._shape(x), (3, 3, 3), ones, True
        )
        return coords, made

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return _Layer(channels, bias)

    def apply(self, layer: Any, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        coords, made = sites
        out, _ = sparse_submanifold_conv3d(
            x, coords, self._shape(x), layer.weight, layer.bias, made
        )
        return sites, out


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    return by_torch.measured(FlexGEMM(cloud["coords"]), row, cloud)
