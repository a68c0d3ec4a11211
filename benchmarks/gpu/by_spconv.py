"""spconv on a GPU, its own choice of algorithm, the map under an ``indice_key``."""

from __future__ import annotations

from typing import Any

import numpy as np
import spconv
import spconv.pytorch as sp
import torch
from benchmarks.gpu.by_torch import DEVICE, operands, stepped, wait
from benchmarks.gpu.rows import NETWORKS, Row
from benchmarks.gpu.stopwatch import timed
from benchmarks.peers.spconv_minkunet import MinkUNet

BLOCKS_OF_34 = (2, 3, 4, 6, 2, 2, 2, 2)


def versions() -> dict[str, str]:
    return {"spconv": spconv.__version__, "PyTorch": torch.__version__}


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    coords = torch.from_numpy(cloud["coords"]).to(DEVICE)
    grid = ((cloud["coords"][:, 1:].max(0) // 16 + 1) * 16).tolist()
    if row.operation == "map":
        return timed(_map(coords, grid), wait)
    if row.operation in NETWORKS:
        return timed(_network(row, coords, grid), wait)
    x, w, dy = operands(row, len(coords))
    conv = sp.SubMConv3d(row.channels, row.channels, 3, bias=False, indice_key="map")
    conv = conv.to(DEVICE, x.dtype)
    conv.train(row.trains)
    tensor = sp.SparseConvTensor(x, coords, grid, 1)
    known = conv(tensor).indice_dict  # the map is made here

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        del w
        given = sp.SparseConvTensor(x, coords, grid, 1, indice_dict=known)
        return conv(given).features

    return timed(stepped(row, forward, x, conv.weight if row.trains else w, dy), wait)


def _map(coords: torch.Tensor, grid: list[int]) -> Any:
    conv = sp.SubMConv3d(1, 1, 3, bias=False, indice_key="map").to(DEVICE)
    ones = torch.ones(len(coords), 1, device=DEVICE)

    def run() -> Any:
        with torch.no_grad():  # one channel: nearly all of it is the map
            return conv(sp.SparseConvTensor(ones, coords, grid, 1)).features

    return run


def _network(row: Row, coords: torch.Tensor, grid: list[int]) -> Any:
    """Training under autocast; inference in the dtype itself, since spconv's layers stay float32
    under autocast in evaluation."""
    dtype = getattr(torch, row.dtype)
    model, call = (_spunet if row.operation == "SpUNet34C" else _minkunet)(coords, grid)
    model = model.to(DEVICE).train(row.trains)
    features = torch.randn(len(coords), 4, device=DEVICE)
    if not row.trains:
        model, features = model.to(dtype), features.to(dtype)
    labels = torch.randint(0, 20, (len(coords),), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def infer() -> Any:
        with torch.no_grad():
            return call(features)

    def train() -> Any:
        with torch.autocast(DEVICE, dtype, enabled=row.dtype != "float32"):
            loss = torch.nn.functional.cross_entropy(call(features).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train if row.trains else infer


def _minkunet(coords: torch.Tensor, grid: list[int]) -> tuple[torch.nn.Module, Any]:
    model = MinkUNet(4, 20, blocks=BLOCKS_OF_34)
    return model, lambda features: model(sp.SparseConvTensor(features, coords, grid, 1))


def _spunet(coords: torch.Tensor, grid: list[int]) -> tuple[torch.nn.Module, Any]:
    from torch_pointcloud.models import SparseUNetSegmentation

    del grid
    model, batch = SparseUNetSegmentation(4, 20), coords[:, 0].long()
    cells = coords[:, 1:].long()
    return model, lambda features: model(features, cells, batch)
