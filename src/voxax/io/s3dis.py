"""Read rooms of S3DIS, which has a file for each object, ``AREA/ROOM/Annotations/chair_1.txt``.

A row has x, y, z, red, green and blue. The points of a room are the points of all its objects,
sorted by the objects' names. The name of an object begins with its class.

Source: Armeni et al., "3D Semantic Parsing of Large-Scale Indoor Spaces", CVPR 2016, and the data
set's files (``Stanford3dDataset_v1.2_Aligned_Version``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.formats import read
from voxax.io.layout import Layout, PathTask, folders_with
from voxax.io.point_cloud import PointCloud, joined

S3DIS_CLASSES = (
    "ceiling", "floor", "wall", "beam", "column", "window", "door", "table", "chair", "sofa",
    "bookcase", "board", "clutter",
)  # fmt: skip
COLUMNS = ("x", "y", "z", "red", "green", "blue")
AREAS = {
    "train": ("Area_1", "Area_2", "Area_3", "Area_4", "Area_6"),
    "validation": ("Area_5",),
    "test": ("Area_5",),
}
"""The usual areas of each split; the test area is the only one in another building."""


@dataclass(frozen=True)
class S3disRoom(PathTask):
    """Callable that reads a room as a cloud; objects without a class, such as stairs, are clutter.

    If `labeled`, the cloud has labels and the attribute ``instance``, the index of the object.
    """

    folder: str
    labeled: bool = True

    def __call__(self) -> PointCloud:
        clouds = []
        for number, path in enumerate(objects_of(Path(self.folder))):
            cloud = read(path, columns=COLUMNS)
            name = path.stem.rpartition("_")[0].lower()
            name = name if name in S3DIS_CLASSES else "clutter"
            if self.labeled:
                cloud.attributes["instance"] = np.full(len(cloud), number, np.int32)
                cloud = cloud.with_labels(np.full(len(cloud), S3DIS_CLASSES.index(name)))
            clouds.append(cloud)
        return replace(joined(clouds), source=str(self))


def objects_of(room: Path) -> list[Path]:
    """Return the files of a room's objects, sorted by name, which is the order of the points."""
    files = sorted((room / "Annotations").glob("*.txt"))
    if not files:
        raise FileFormatError(f"{room / 'Annotations'} holds no objects (*.txt)")
    return files


class S3dis(Layout):
    """List the rooms in an S3DIS folder; names are like ``Area_5`` or ``Area_5/office_1``."""

    marks = ("Area_*/*/Annotations",)
    class_names = S3DIS_CLASSES
    attributes = ("rgb", "instance")

    def split(self, name: str) -> Sequence[str]:
        return AREAS[name]

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[S3disRoom]:
        found = []
        for name in names:
            what = f"rooms: the layout is {name}/ROOM/Annotations/*.txt"
            rooms = folders_with(self.folder / name, "Annotations", what)
            for room in rooms:
                objects_of(room)
            found += [S3disRoom(str(room), labeled) for room in rooms]
        return found
