"""spconv on a GPU, its own choice of algorithm, the map under an ``indice_key``."""

from __future__ import annotations

from typing import Any

import numpy as np
import spconv
import spconv.pytorch as sp
import torch
from benchmarks import minkunet
from benchmarks.gpu import by_torch
from benchmarks.gpu.by_torch import DEVICE, wait
from benchmarks.gpu.published import SEVEN
from benchmarks.gpu.rows import NETWORKS, Row
from benchmarks.gpu.stopwatch import timed
from benchmarks.peers.spconv_minkunet import let_backward_run_on_cpu
from benchmarks.whole_networks import allow_bias

BLOCKS_OF_34 = minkunet.MINKUNET34C[1]
let_backward_run_on_cpu()


def versions() -> dict[str, str]:
    return {spconv.__name__.replace("_", "-"): spconv.__version__, "PyTorch": torch.__version__}


class Spconv:
    def __init__(self, coords: np.ndarray) -> None:
        self._grid = ((coords[:, 1:].max(0) // 16 + 1) * 16).tolist()
        self._scenes = int(coords[:, 0].max()) + 1

    def sites(self, coords: torch.Tensor, x: torch.Tensor) -> sp.SparseConvTensor:
        return sp.SparseConvTensor(x, coords, self._grid, self._scenes)

    def layer(self, channels: int, bias: bool) -> torch.nn.Module:
        return sp.SubMConv3d(channels, channels, 3, bias=bias, indice_key="map")

    def apply(self, layer: torch.nn.Module, sites: Any, x: torch.Tensor) -> tuple[Any, Any]:
        result = layer(sites.replace_feature(x))
        return result, result.features


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    if row.operation in NETWORKS or row.operation in SEVEN:
        return timed(_network(row, cloud["coords"]), wait)
    return by_torch.measured(Spconv(cloud["coords"]), row, cloud)


def _network(row: Row, coords: np.ndarray) -> Any:
    """Training under autocast; inference in the dtype itself, since spconv's layers stay float32
    under autocast in evaluation."""
    dtype = getattr(torch, row.dtype)
    model, call, channels = _model(row.operation, coords)
    model = model.to(DEVICE).train(row.trains)
    allow_bias(model)
    features = torch.randn(len(coords), channels, device=DEVICE)
    if not row.trains:
        model, features = model.to(dtype), features.to(dtype)
    labels = torch.randint(0, 16, (len(coords),), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def infer() -> Any:
        with torch.no_grad():
            return call(features)

    def train() -> Any:
        with torch.autocast(DEVICE, dtype, enabled=row.dtype != "float32"):
            out = call(features).float()
            if channels == 4:
                loss = torch.nn.functional.cross_entropy(out, labels)
            else:  # of a detector the rows are others
                loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train if row.trains else infer


def _model(name: str, coords: np.ndarray) -> tuple[torch.nn.Module, Any, int]:
    """The network, a call of it on features, and their channels."""
    rows = torch.from_numpy(coords).to(DEVICE)
    sites = Spconv(coords)
    if name == "SpUNet34C":
        from torch_pointcloud.models import SparseUNetSegmentation

        model, batch, cells = SparseUNetSegmentation(4, 20), rows[:, 0].long(), rows[:, 1:].long()
        return model, lambda features: model(features, cells, batch), 4
    if name in SEVEN and SEVEN[name].range is not None:
        return _detector(name, coords)
    work = SEVEN.get(name)
    stems, blocks = minkunet.MINKUNET18 if work else (minkunet.MINKUNET18[0], BLOCKS_OF_34)
    width = work.width if work else 1.0
    model = minkunet.MinkUNet(
        minkunet.Spconv(sp),
        4,
        work.classes if work else 20,
        stems,
        blocks,
        stem=round(width * minkunet.STEM),
        planes=[round(width * plane) for plane in minkunet.PLANES],
    )
    return model, lambda features: model(sites.sites(rows, features)), 4


def _detector(name: str, coords: np.ndarray) -> tuple[torch.nn.Module, Any, int]:
    from torch_pointcloud.models.second import VoxelResBackbone8x

    work = SEVEN[name]
    model = VoxelResBackbone8x(work.channels)
    x, y, z = work.grid
    upright = torch.from_numpy(np.ascontiguousarray(coords[:, [0, 3, 2, 1]])).to(DEVICE)
    scenes = int(coords[:, 0].max()) + 1

    def call(features: torch.Tensor) -> torch.Tensor:
        given = sp.SparseConvTensor(features, upright.clone(), [z + 1, y, x], scenes)
        return model(given).features

    return model, call, work.channels
