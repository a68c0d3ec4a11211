"""Read data sets prepared by Pointcept: a folder per scene, with a NumPy file per attribute.

``SPLIT/SCENE/`` (ScanNet) and ``AREA/ROOM/`` (S3DIS) contain ``coord.npy``, ``color.npy``,
``normal.npy``, ``instance.npy``, and the labels: ``segment20.npy`` or ``segment200.npy`` for
ScanNet, ``segment.npy`` for S3DIS. Only ``coord.npy`` and the labels are required.

Source: the preprocessing of Pointcept, https://github.com/Pointcept/Pointcept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.decoding import existing_file
from voxax.io.layout import Layout, PathTask, folders_with
from voxax.io.numpy_files import read_npy_array
from voxax.io.point_cloud import PointCloud, as_labels
from voxax.io.s3dis import AREAS, S3DIS_CLASSES
from voxax.io.scannet import SCANNET200_CLASS_NAMES, SCANNET_CLASS_NAMES

# The attribute by the name of its file. Colors are integers from 0 to 255.
ATTRIBUTES = {"color": "rgb", "normal": "normals", "instance": "instance"}


@dataclass(frozen=True)
class ArrayScene(PathTask):
    """Callable that reads the arrays in one scene's folder as a point cloud.

    Attributes:
      folder: the path of the folder.
      labels: the name of the file of labels, such as ``segment20.npy``; None reads no labels.
      classes: the number of classes; labels equal to it or larger become -1.
    """

    folder: str
    labels: str | None
    classes: int

    def __call__(self) -> PointCloud:
        place = Path(self.folder)
        positions = _rows(place / "coord.npy", 3, None).astype(np.float64)
        attributes, number = {}, len(positions)
        for file, name in ATTRIBUTES.items():
            path = place / f"{file}.npy"
            if path.is_file():
                values = _rows(path, 1 if name == "instance" else 3, number)
                attributes[name] = values.astype(np.uint8) if name == "rgb" else values
        labels = None
        if self.labels is not None:
            labels = as_labels(_rows(place / self.labels, 1, number))
            labels = np.where(labels < self.classes, labels, -1)
        cloud = PointCloud(positions, attributes, labels, str(self))
        return cloud.select(np.isfinite(positions).all(axis=1))


def _rows(path: Path, width: int, number: int | None) -> np.ndarray:
    """Read an array [N, width] of numbers from a ``.npy`` file, or [N] if `width` is 1.

    `number` is the required N; None allows any N.
    """
    values = read_npy_array(existing_file(path))
    rows = values.reshape(len(values), -1) if values.ndim else values
    if rows.ndim != 2 or rows.shape[1] != width or number not in (None, len(rows)):
        wanted = f"[{'N' if number is None else number}, {width}]"
        raise FileFormatError(f"{path} has the shape {list(values.shape)}, it must have {wanted}")
    if rows.dtype.kind not in "iuf":
        raise FileFormatError(f"{path} holds {rows.dtype}, no numbers")
    return np.array(rows[:, 0] if width == 1 else rows)


class ArrayFolder(Layout):
    """List the scenes of a data set that Pointcept prepared.

    The names of :meth:`scans` are ``FOLDER``, for all its scenes, or ``FOLDER/SCENE``.

    Attributes:
      labels: the name of the file of labels in a scene's folder.
      splits: for each split, such as ``train``, the names of the folders that contain its scenes.
    """

    attributes = tuple(ATTRIBUTES.values())
    labels: ClassVar[str]
    splits: ClassVar[dict[str, tuple[str, ...]]]

    def split(self, name: str) -> Sequence[str]:
        return self.splits[name]

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[ArrayScene]:
        found = []
        for name in names:
            what = f"scenes: the layout is {name}/SCENE/coord.npy"
            for scene in folders_with(self.folder / name, "coord.npy", what):
                if labeled and not (scene / self.labels).is_file():
                    raise FileFormatError(f"{scene} has no labels: {self.labels} is missing")
                labels = self.labels if labeled else None
                found.append(ArrayScene(str(scene), labels, len(self.class_names)))
        return found


_SCANNET_SPLITS = {"train": ("train",), "validation": ("val",), "test": ("test",)}


class ScanNetArrays(ArrayFolder):
    """List Pointcept's ScanNet scenes with 20 classes; names: ``val`` or ``val/scene0011_00``."""

    marks = ("*/scene*/segment20.npy",)
    class_names, labels, splits = SCANNET_CLASS_NAMES, "segment20.npy", _SCANNET_SPLITS


class ScanNet200Arrays(ArrayFolder):
    """List Pointcept's ScanNet scenes with 200 classes; names: ``val`` or ``val/scene0011_00``."""

    class_names, labels, splits = SCANNET200_CLASS_NAMES, "segment200.npy", _SCANNET_SPLITS


class S3disArrays(ArrayFolder):
    """List Pointcept's S3DIS rooms; names are like ``Area_5`` or ``Area_5/office_1``."""

    marks = ("Area_*/*/segment.npy",)
    class_names, labels, splits = S3DIS_CLASSES, "segment.npy", AREAS
