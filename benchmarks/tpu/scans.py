"""Real scans as voxels in canonical order, and their 3x3x3 neighbors, by NumPy alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SCANS = {
    # name: file, two voxel sizes in its units (meshes: of their longest edge)
    "semantickitti": ("nc/semantickitti_00_000000.bin", (0.05, 0.1)),
    "nuscenes": ("nc/nuscenes_n015_lidar_top.pcd.bin", (0.05, 0.1)),
    "os0": ("lidar_os0_128.npz", (0.05, 0.1)),
    "hdl32e": ("lidar_hdl32e_target.ply", (0.05, 0.1)),
    # feet
    "autzen": ("air_autzen_trim.las", (0.5, 1.0)),
    "ahn3": ("air_ahn3_delft.npz", (0.5, 1.0)),
    "lone_star": ("tls_lone_star.npz", (0.05, 0.1)),
    "office1": ("rgbd_office1.pcd", (0.02, 0.05)),
    "room_scan1": ("room_scan1.pcd", (0.02, 0.05)),
    "spot": ("mesh_spot.obj", (1 / 128, 1 / 64)),
    "cycloidal": ("mesh_cycloidal.ply", (1 / 128, 1 / 64)),
    "bunny": ("nc/mesh_stanford_bunny.obj", (1 / 128, 1 / 64)),
}
_MESH_POINTS = 1_000_000


def points(folder: Path, name: str) -> np.ndarray:
    """``float[N, 3]``; of meshes, random points on their triangles, the longest edge being 1."""
    path = folder / SCANS[name][0]
    if path.suffix == ".npz":
        with np.load(path) as stored:
            found = stored["xyz"]
    elif path.name.endswith(".pcd.bin"):
        found = np.fromfile(path, np.float32).reshape(-1, 5)[:, :3]
    elif path.suffix == ".bin":
        found = np.fromfile(path, np.float32).reshape(-1, 4)[:, :3]
    elif path.name.startswith("mesh"):
        found = _on_triangles(path)
    else:
        from voxax.io import read

        found = np.asarray(read(path).positions)
    found = np.asarray(found, np.float64)
    return found[np.isfinite(found).all(1)]


def _on_triangles(path: Path) -> np.ndarray:
    import trimesh

    mesh = trimesh.load(path, force="mesh")
    found, _ = trimesh.sample.sample_surface(mesh, _MESH_POINTS, seed=0)
    return found / np.ptp(mesh.vertices, axis=0).max()


def cells(positions: np.ndarray, voxel_size: float) -> np.ndarray:
    """Distinct ``int64[N, 3]`` in canonical order."""
    return np.unique(np.floor(positions / voxel_size).astype(np.int64), axis=0)


def neighbors(rows: np.ndarray) -> np.ndarray:
    """``int32[N, 27]`` of the submanifold 3x3x3 map, or -1."""
    if not len(rows):
        return np.zeros((0, 27), np.int32)
    low, extent = rows.min(0) - 1, np.ptp(rows, axis=0) + 3
    keys = np.ravel_multi_index(tuple((rows - low).T), tuple(extent))
    steps = np.stack(np.meshgrid(*[np.arange(-1, 2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    weights = np.array([extent[1] * extent[2], extent[2], 1])
    table = np.full((len(rows), 27), -1, np.int32)
    for tap, step in enumerate(steps @ weights):
        at = np.searchsorted(keys, keys + step)
        at[at == len(keys)] = 0
        table[:, tap] = np.where(keys[at] == keys + step, at, -1)
    return table
