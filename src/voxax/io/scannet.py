"""The folders of ScanNet, and the 20 classes of its benchmark.

``scans/SCENE/SCENE_vh_clean_2.ply`` is a mesh whose vertices are the points, and
``SCENE_vh_clean_2.labels.ply`` the same mesh with an id of NYU's 40 classes for each vertex.

Source: the data set's documentation (Dai et al., "ScanNet: Richly-annotated 3D Reconstructions of
Indoor Scenes", CVPR 2017).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.files import existing_file
from voxax.io.labelled_files import fold
from voxax.io.ply import read_ply_vertices
from voxax.io.point_cloud import PointCloud

SCANNET_CLASSES = {
    1: "wall",
    2: "floor",
    3: "cabinet",
    4: "bed",
    5: "chair",
    6: "sofa",
    7: "table",
    8: "door",
    9: "window",
    10: "bookshelf",
    11: "picture",
    12: "counter",
    14: "desk",
    16: "curtain",
    24: "refrigerator",
    28: "shower curtain",
    33: "toilet",
    34: "sink",
    36: "bathtub",
    39: "other furniture",
}
SCANNET_CLASS_NAMES = tuple(SCANNET_CLASSES.values())

MESH, LABELS = "_vh_clean_2.ply", "_vh_clean_2.labels.ply"


@dataclass(frozen=True)
class ScanNetScene:
    """Task: the vertices of one scene, in the 20 classes; others are unknown, -1."""

    mesh: str
    labels: str

    def __call__(self) -> PointCloud:
        cloud = read_ply_vertices(existing_file(self.mesh))
        labelled = read_ply_vertices(existing_file(self.labels))
        if labelled.labels is None:
            raise FileFormatError(f"the vertices of {self.labels} have no property label")
        if len(labelled) != len(cloud):
            raise FileFormatError(
                f"{self.labels} has {len(labelled)} vertices, {self.mesh} has {len(cloud)}: they "
                "are of different meshes"
            )
        labels = fold(labelled.labels, tuple(SCANNET_CLASSES))
        finite = np.isfinite(cloud.positions).all(axis=1)
        return replace(cloud, labels=labels).select(finite)

    def __str__(self) -> str:
        return self.mesh


def scannet_scenes(folder: Path, scenes: Sequence[str]) -> list[ScanNetScene]:
    """Scenes by name, such as ``scene0000_00``.

    Raises:
        FileFormatError: a scene, or one of its two files, is missing.
    """
    place = folder / "scans"
    if not place.is_dir():
        raise FileFormatError(f"{folder} has no folder scans, which the layout of ScanNet has")
    found = []
    for name in scenes:
        own = place / name
        mesh, labels = own / f"{name}{MESH}", own / f"{name}{LABELS}"
        for path in (mesh, labels):
            if not path.is_file():
                there = sum(p.is_dir() for p in place.iterdir())
                raise FileFormatError(
                    f"scene {name!r} has no file {path}; {place} holds {there} scenes"
                )
        found.append(ScanNetScene(str(mesh), str(labels)))
    return found
