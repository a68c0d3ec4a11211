"""The inputs of the cases, as arrays that every library gets alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.cases import MINKUNET_CHANNELS, MINKUNET_CLASSES, OPERATIONS, Case
from benchmarks.tuning import SCANS
from benchmarks.workloads import positions_of, surface

# Total stride of MinkUNet: coordinates start, and grids end, at a multiple of it.
_ALIGNMENT = 16

# file, voxel size: 16 to 43 thousand voxels each
FILES = {
    "os0-128": SCANS["lidar"],
    "hdl-32e": ("lidar_hdl32e_target.ply", 0.05),
    "indoor": SCANS["indoor"],
    "airborne": SCANS["airborne"],
    "mesh": SCANS["mesh"],
}
WORKLOADS = tuple(FILES)
# Needs no file.
SYNTHETIC = "sphere"


def coords_of(workload: str, folder: Path, size: int = 2000) -> np.ndarray:
    """``int32[N, 4]``, batch index 0 first, in canonical order, not negative.

    spconv takes no negative coordinates. They are moved by a multiple of all strides, so the
    cells of deeper levels stay the same.

    Args:
      workload: a name of ``FILES``, or ``SYNTHETIC``.
      folder: where the files are.
      size: voxels of ``SYNTHETIC``.
    """
    if workload == SYNTHETIC:
        rows = surface(size)[:, 1:]
    else:
        file, voxel_size = FILES[workload]
        rows = np.floor(positions_of(folder / file) / np.float32(voxel_size)).astype(np.int32)
    rows = np.unique(rows, axis=0)
    rows -= rows.min(0) // _ALIGNMENT * _ALIGNMENT
    return np.column_stack([np.zeros(len(rows), np.int32), rows]).astype(np.int32)


def problem(case: Case, coords: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of a case.

    ``coords [N, 4]``, ``grid [3]`` (extent, a multiple of 16). A layer also has ``pairs``,
    ``features [N, C]``, ``weight [K, C, C]``, ``out_coords [M, 4]``, ``neighbors [M, K]`` (row of
    ``coords`` or -1) and ``cotangent [M, C]``; a map has ``pairs``; MinkUNet has ``features``,
    ``labels`` and its weights under spconv's names.
    """
    rng = np.random.default_rng(0)
    grid = (coords[:, 1:].max(0) // _ALIGNMENT + 1) * _ALIGNMENT
    arrays = {"coords": coords, "grid": grid.astype(np.int32)}
    if case.operation == "minkunet18":
        shape = (len(coords), MINKUNET_CHANNELS)
        arrays["features"] = rng.standard_normal(shape, np.float32)
        arrays["labels"] = rng.integers(0, MINKUNET_CLASSES, len(coords))
        return {**arrays, **_minkunet_weights()}
    neighbors, arrays["out_coords"] = relation(case.operation, coords, grid)
    arrays["pairs"] = np.asarray((neighbors >= 0).sum())
    if case.operation == "map3":
        if case.mode == "shuffled":
            arrays["coords"] = coords[rng.permutation(len(coords))]
        return arrays
    c, taps = case.channels, neighbors.shape[1]
    arrays["neighbors"] = neighbors
    arrays["features"] = rng.standard_normal((len(coords), c), np.float32)
    arrays["weight"] = rng.standard_normal((taps, c, c), np.float32) / np.float32(np.sqrt(taps * c))
    arrays["cotangent"] = rng.standard_normal((len(neighbors), c), np.float32)
    return arrays


def relation(operation: str, coords: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(neighbors [M, K], out_coords [M, 4])`` of an operation, by voxax."""
    import voxax as vx

    what = OPERATIONS[operation]
    voxels = vx.Voxels.from_coords(coords, np.zeros((len(coords), 1), np.float32))
    options: dict[str, Any] = {}
    if operation == "conv3s2":  # what spconv's strided convolution does
        reached = 4 * len(coords)
        options = {"generative": True, "spatial_shape": tuple(grid.tolist()), "capacity": reached}
    kernel_map = vx.kernel_map(voxels, what.kernel, what.stride, **options)
    count = int(kernel_map.out_geometry.count)
    out = np.asarray(kernel_map.out_geometry.coords)[:count]
    return np.asarray(kernel_map.neighbors)[:count], out


def minkunet() -> Any:
    """The network that every library runs, with fixed weights."""
    from flax import nnx

    from voxax.models import MinkUNet18

    return MinkUNet18(MINKUNET_CHANNELS, MINKUNET_CLASSES, rngs=nnx.Rngs(0))


def _minkunet_weights() -> dict[str, np.ndarray]:
    from voxax.interop import to_spconv

    return {f"spconv.{name}": np.asarray(v) for name, v in to_spconv(minkunet()).items()}
