"""Open3D-ML: its ``sparse_conv`` op on a prebuilt neighbor list.

Its ``SparseConv`` layer calls the op, and was never as fast in 120 cases on three processors.
"""

from __future__ import annotations

import importlib.metadata
from functools import partial
from typing import Any

import numpy as np
import open3d.ml.torch as ml3d
import torch
from benchmarks.peers.by_torch import differentiated
from benchmarks.peers.cases import Case, Contestant, Makers

# What SparseConv itself uses.
_HASH_TABLE_SIZE = 1 / 64


def setup(threads: int) -> None:
    torch.set_num_threads(threads)  # TBB counts the processors that the process may use


def versions() -> dict[str, str]:
    try:
        version = importlib.metadata.version("open3d-cpu")
    except importlib.metadata.PackageNotFoundError:  # --python may have the one for CUDA
        version = importlib.metadata.version("open3d")
    return {"Open3D": version, "PyTorch": torch.__version__}


def contestants(case: Case, arrays: dict[str, np.ndarray]) -> Makers:
    if case.operation == "minkunet18":
        return {}
    if case.operation == "map3":
        return {"search": partial(_search, arrays)}
    return {"op": partial(_op, case, arrays)}


def _op(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    neighbors = arrays["neighbors"]
    out, tap = np.nonzero(neighbors >= 0)
    rows = torch.from_numpy(neighbors[out, tap].astype(np.int32))
    taps = torch.from_numpy(tap.astype(np.uint8))
    splits = torch.from_numpy(np.searchsorted(out, np.arange(len(neighbors) + 1)).astype(np.int64))
    none = torch.empty(0)

    def forward(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ml3d.ops.sparse_conv(weight, features, none, rows, taps, none, splits)

    given = (torch.from_numpy(arrays[name]) for name in ("features", "weight", "cotangent"))
    return differentiated(case, *given, forward)


def _search(arrays: dict[str, np.ndarray]) -> Contestant:
    """Hash table and search, as in the layer. The op needs the tap of each pair as well."""
    points = _positions(arrays["coords"])
    search = ml3d.layers.FixedRadiusSearch(metric="Linf", return_distances=False)

    def run() -> Any:
        return search(points, points, 3 * 0.51, hash_table_size_factor=_HASH_TABLE_SIZE)

    return Contestant(run, lambda found: {"pairs": np.asarray(len(found.neighbors_index))})


def _positions(coords: np.ndarray) -> torch.Tensor:
    """Centers of voxels. Open3D counts a kernel's taps from z to x."""
    return torch.from_numpy(coords[:, :0:-1].astype(np.float32) + np.float32(0.5))
