"""The clouds of the GPU's table, as files that every library's process reads with NumPy alone.

    python benchmarks/gpu/clouds.py --data FOLDER --into FOLDER

makes all of them ahead, for ``--clouds`` of ``run.py`` on a machine without the scans.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from benchmarks.gpu.published import SEVEN, TWO_SCENES, scene, sphere
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
SPHERE = "sphere"


def file_of(name: str, folder: Path) -> Path:
    """The file of a row's cloud."""
    return folder / f"{name.replace(':', '-')}.npz"


def prepare(name: str, folder: Path | None, into: Path) -> Path:
    """Write ``coords int32[N, 4]`` and ``source`` of a cloud, and of layers' clouds ``pairs``.

    Args:
      name: of :data:`FILES` or of :data:`published.SEVEN`, or ``sphere`` with the cells along an
        axis; then :data:`TWO_SCENES`; behind a colon the number of voxels where it is cut.
      folder: of the scans, or None.
      into: folder for the file.
    """
    path = file_of(name, into)
    if path.exists():
        return path
    into.mkdir(parents=True, exist_ok=True)
    name, _, number = name.partition(":")
    kind = name.removesuffix(TWO_SCENES)
    rows, source = _rows(kind, folder, int(number) if number else None)
    if number:  # those nearest to the middle: as dense as the whole
        distance = np.abs(rows - np.median(rows, axis=0)).max(1)
        rows = rows[np.sort(np.argsort(distance, kind="stable")[: int(number)])]
    rows = rows - rows.min(0) // 16 * 16  # spconv takes no negative coordinates
    coords = np.column_stack([np.zeros(len(rows), np.int32), rows]).astype(np.int32)
    if name != kind:
        other = np.unique(rows * [1, -1, 1] + [0, rows[:, 1].max(), 0], axis=0)
        other = np.column_stack([np.ones(len(other)), other])
        coords = np.concatenate([coords, other]).astype(np.int32)
    facts = {"pairs": (neighbors(rows) >= 0).sum()} if kind in FILES else {}
    temporary = path.with_suffix(".part.npz")
    coords = np.ascontiguousarray(coords)  # FlexGEMM takes no other
    np.savez_compressed(temporary, coords=coords, source=source, **facts)
    temporary.replace(path)  # a run may be stopped at any moment
    return path


def _rows(kind: str, folder: Path | None, size: int | None) -> tuple[np.ndarray, str]:
    if kind in SEVEN:
        return scene(SEVEN[kind], folder)
    if kind.startswith(SPHERE):
        return sphere(int(kind.removeprefix(SPHERE))), "FlexGEMM's shell"
    for scan, voxel in FILES[kind]:
        if folder is not None and (folder / SCANS[scan][0]).exists():
            return cells(points(folder, scan), voxel), f"the scan {scan}, {voxel} m"
    from benchmarks import workloads

    name, usual = SYNTHETIC[kind]
    made = getattr(workloads, name)(size or usual)
    return np.unique(made[:, 1:].astype(np.int64), axis=0), f"{name}, synthetic"


def main() -> None:
    from benchmarks.gpu.rows import every_row

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of scans")
    parser.add_argument("--into", type=Path, required=True, help="folder for the clouds")
    options = parser.parse_args()
    for name in filter(None, dict.fromkeys(row.cloud for row in every_row())):
        path = prepare(name, options.data, options.into)
        with np.load(path) as file:
            print(f"{path}: {len(file['coords'])} voxels, {file['source']}", flush=True)


if __name__ == "__main__":
    main()
