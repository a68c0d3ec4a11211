"""Small folders in the layouts of data sets, for tests that read or train."""

import numpy as np
from plyfile import PlyData, PlyElement

from voxax.io import write_ply

# Raw ids of SemanticKITTI, and their places among the common classes: road and building.
ROAD, BUILDING = 40, 50


def street(rng, points=1500, reach=16):
    """Return ground with blocks of houses, and for each point whether it is a house."""
    plan = rng.uniform(-reach, reach, (points, 2))
    house = np.floor(plan / 4).sum(1) % 3 == 0
    height = np.where(house, rng.uniform(1, 4, points), 0.0)
    return np.column_stack([plan, height]), house


def semantic_kitti(folder, rng, scans, points=1500):
    """``scans`` sweeps for each sequence: ``{"00": 3}``."""
    for sequence, number in scans.items():
        own = folder / "sequences" / sequence
        for name in ("velodyne", "labels"):
            (own / name).mkdir(parents=True)
        for index in range(number):
            positions, house = street(rng, points)
            rows = np.column_stack([positions, rng.random(points)]).astype("<f4")
            rows.tofile(own / "velodyne" / f"{index:06d}.bin")
            instance = rng.integers(0, 9, points) << 16
            packed = instance | np.where(house, BUILDING, ROAD)
            packed.astype("<u4").tofile(own / "labels" / f"{index:06d}.label")
    return folder


def mesh(path, positions, **columns):
    """Vertices with columns, and faces."""
    kinds = {name: values.dtype.str for name, values in columns.items()}
    rows = np.empty(len(positions), [*((axis, "f4") for axis in "xyz"), *kinds.items()])
    for axis, values in zip("xyz", np.asarray(positions).T, strict=True):
        rows[axis] = values
    for name, values in columns.items():
        rows[name] = values
    faces = np.empty(1, [("vertex_indices", "i4", (3,))])
    faces["vertex_indices"] = [[0, 1, 2]]
    elements = [PlyElement.describe(rows, "vertex"), PlyElement.describe(faces, "face")]
    PlyData(elements, byte_order="<").write(path)


def scannet(folder, rng, scenes, points=800):
    """Write rooms: floor (2), walls (1) and a class that does not count (13)."""
    for name in scenes:
        own = folder / "scans" / name
        own.mkdir(parents=True)
        positions = rng.uniform(0, 4, (points, 3))
        ids = rng.choice(np.asarray([1, 2, 13], np.uint16), points)
        positions[ids == 2, 2] = 0
        positions[ids == 1, 0] = 0
        colors = {c: rng.integers(0, 256, points).astype("u1") for c in ("red", "green", "blue")}
        mesh(own / f"{name}_vh_clean_2.ply", positions, **colors)
        mesh(own / f"{name}_vh_clean_2.labels.ply", positions, **colors, label=ids)
    return folder


def labeled(folder, rng, names, points=800):
    """Scans of one kind or another, labeled 2 (ground) and 6 (building) inside."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        positions, house = street(rng, points)
        labels = np.where(house, 6, 2)
        if path.suffix == ".npz":
            np.savez(path, xyz=positions, label=labels)
        else:
            write_ply(path, positions, labels=labels)
    return folder
