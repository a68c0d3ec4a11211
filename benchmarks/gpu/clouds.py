"""The clouds of the GPU's table, as files that every library's process reads with NumPy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.tpu.scans import SCANS, cells, neighbors, points

# Scans by preference; the first that is there is taken.
FILES = {
    "lidar": (("semantickitti", 0.05), ("os0", 0.05)),
    "indoor": (("office1", 0.02), ("room_scan1", 0.02)),
    # As many voxels as networks are given in the field, by the size of the voxels: the median of
    # nuScenes (ten sweeps in one), SemanticKITTI, ScanNet.
    "lidar91k": (("semantickitti", 0.055), ("os0", 0.019)),
    "lidar120k": (("semantickitti", 0.019),),
    "indoor148k": (("office1", 0.0115),),
}
# What stands in where no scan is, and its voxels.
SYNTHETIC = {
    "lidar": ("lidar_tiles", 100_000),
    "indoor": ("surface", 100_000),
    "lidar91k": ("lidar_tiles", 91_000),
    "lidar120k": ("lidar_tiles", 120_000),
    "indoor148k": ("surface", 148_000),
}


def prepare(name: str, folder: Path | None, into: Path) -> Path:
    """Write ``coords int32[N, 4]``, ``neighbors int32[N, 27]`` and ``source`` of a cloud.

    Args:
      name: of a row's cloud.
      folder: of the scans, or None.
      into: folder for the file.
    """
    path = into / f"{name.replace(':', '-')}.npz"
    if path.exists():
        return path
    kind, _, number = name.partition(":")
    rows, source = _rows(kind, folder, int(number) if number else None)
    if number:  # those nearest to the middle: as dense as the whole
        distance = np.abs(rows - np.median(rows, axis=0)).max(1)
        rows = rows[np.sort(np.argsort(distance, kind="stable")[: int(number)])]
    rows = rows - rows.min(0) // 16 * 16  # spconv takes no negative coordinates
    coords = np.column_stack([np.zeros(len(rows), np.int32), rows]).astype(np.int32)
    np.savez_compressed(path, coords=coords, neighbors=neighbors(rows), source=source)
    return path


def _rows(kind: str, folder: Path | None, size: int | None) -> tuple[np.ndarray, str]:
    for scan, voxel in FILES[kind]:
        if folder is not None and (folder / SCANS[scan][0]).exists():
            return cells(points(folder, scan), voxel), f"{scan} at {voxel} m"
    from benchmarks import workloads

    name, usual = SYNTHETIC[kind]
    made = getattr(workloads, name)(size or usual)
    return np.unique(made[:, 1:].astype(np.int64), axis=0), f"{name}, synthetic"
