"""Read data sets of single objects: ModelNet (a class per object), ShapeNet (a part per point).

ModelNet comes in three forms. The class of an object becomes the label of all its points.

- ``CLASS/train/*`` and ``CLASS/test/*``: ModelNet10 and ModelNet40, meshes in ``.off``. Any
  other files that voxax reads may replace them.
- ``CLASS/CLASS_0001.txt`` with lists of names in ``modelnet40_train.txt`` and
  ``modelnet40_test.txt``: ``modelnet40_normal_resampled``.
- ``train_files.txt``, ``test_files.txt`` and ``shape_names.txt``, which name HDF5 files with arrays
  ``data`` and ``label``: ``modelnet40_ply_hdf5_2048``.

ShapeNet has ``OFFSET/NAME.txt`` with x, y, z, normals and a part for each point, and
``train_test_split/shuffled_*_file_list.json`` names the clouds of each split.

Sources: Wu et al., "3D ShapeNets: A Deep Representation for Volumetric Shapes", CVPR 2015; Yi et
al., "A Scalable Active Framework for Region Annotation in 3D Shape Collections", 2016; and the
files of ``shapenetcore_partanno_segmentation_benchmark_v0_normal`` and of the data sets above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voxax._bounded_file import MEBIBYTE, bounded_json
from voxax.errors import FileFormatError, InputError, import_extra
from voxax.io.decoding import check_unpacked, existing_file, reading
from voxax.io.formats import read, readable_extensions
from voxax.io.layout import Layout, PathTask
from voxax.io.point_cloud import PointCloud

# Number of points to sample from a mesh, which is enough for the voxels of a small object.
SURFACE_POINTS = 10_000
NORMALS = ("x", "y", "z", "nx", "ny", "nz")
SHAPES = "shape_names.txt"


@dataclass(frozen=True)
class ClassifiedCloud:
    """Callable that reads the cloud of one object; the label of all points is the object's class.

    The points are moved and scaled: their mean is the origin, and the farthest point from the
    origin has the distance 1.

    Attributes:
      path: the path of the file.
      label: the index of the object's class.
      item: the index of the cloud in a file of several; None if the file has only one.
      points: the number of points to sample from the surface of a mesh.
    """

    path: str
    label: int
    item: int | None = None
    points: int = SURFACE_POINTS

    def __call__(self) -> PointCloud:
        columns = NORMALS if self._is_resampled() else None
        cloud = read(self.path, item=self.item, points=self.points, columns=columns)
        positions = cloud.positions - cloud.positions.mean(axis=0)
        reach = np.linalg.norm(positions, axis=1).max()
        positions = positions / (reach if reach > 0 else 1.0)
        labels = np.full(len(cloud), self.label, np.int32)
        return PointCloud(positions, cloud.attributes, labels, str(self))

    def _is_resampled(self) -> bool:
        """Return whether the file is a ``.txt`` whose first line has six comma-separated fields.

        The columns of such a file are read as x, y, z, and the normals nx, ny, nz.
        """
        path = Path(self.path)
        if path.suffix.lower() != ".txt":
            return False
        with path.open("rb") as stream:
            return stream.readline(1000).count(b",") == len(NORMALS) - 1

    def __str__(self) -> str:
        return self.path if self.item is None else f"{self.path}[{self.item}]"


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the class names of a ModelNet folder, in the order of the class indices.

    They are read from a file ``*shape_names.txt`` (the last by name, which is ModelNet40's). If
    there is none, they are the sorted names of the subfolders.
    """
    lists = sorted(folder.glob("*" + SHAPES))
    if lists:
        return tuple(existing_file(lists[-1]).read_text().split())
    folders = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    if not folders:
        raise FileFormatError(f"{folder} has no folders of classes, and no {SHAPES} that names any")
    return tuple(folders)


def cloud_split(
    folder: Path, split: Sequence[str], classes: Sequence[str]
) -> list[ClassifiedCloud]:
    """Return one callable for each cloud of a split of ModelNet.

    `split` is ``("train",)``, ``("test",)``, or names of clouds that begin with their class, such
    as ``airplane_0001``. `classes` are the names of the classes in the order of their indices.
    """
    if len(split) > 1 or split[0] not in ("train", "test"):
        return [_named(folder, name, classes) for name in split]
    if (folder / f"{split[0]}_files.txt").is_file():
        return hdf5_clouds(folder, split[0], classes)
    lists = sorted(folder.glob(f"*_{split[0]}.txt"))
    if lists:
        names = existing_file(lists[-1]).read_text().split()
        return [_named(folder, name, classes) for name in names]
    return _in_folders(folder, split[0], classes)


def _in_folders(folder: Path, split: str, classes: Sequence[str]) -> list[ClassifiedCloud]:
    known = readable_extensions()
    found = []
    for label, name in enumerate(classes):
        own = folder / name / split
        files = sorted(own.glob("*")) if own.is_dir() else []
        files = [path for path in files if path.name.lower().endswith(known)]
        if not files:
            raise FileFormatError(
                f"class {name!r} has no clouds in {own}: the layout is CLASS/{split}/*.off, and "
                f"these files are read: {', '.join(known)}"
            )
        found += [ClassifiedCloud(str(path), label) for path in files]
    return found


def _named(folder: Path, name: str, classes: Sequence[str]) -> ClassifiedCloud:
    label = name.rpartition("_")[0]
    if label not in classes:
        raise InputError(
            f"{name!r} begins with none of the {len(classes)} classes in {folder}, such as "
            f"{classes[0]!r}: names are CLASS_NUMBER"
        )
    for end in readable_extensions():
        path = folder / label / f"{name}{end}"
        if path.is_file():
            return ClassifiedCloud(str(path), list(classes).index(label))
    raise FileFormatError(f"{folder / label} has no file {name} of a kind that voxax reads")


def hdf5_clouds(folder: Path, split: str, classes: Sequence[str]) -> list[ClassifiedCloud]:
    """Return one callable for each cloud in the HDF5 files that ``SPLIT_files.txt`` lists.

    SPLIT is `split`, ``train`` or ``test``. `classes` are the names of the classes, of which
    ``label`` has the indices. An HDF5 file has B clouds of N points as arrays ``data`` [B, N, 3]
    and ``label`` [B].
    """
    h5py = import_extra("reading HDF5", "hdf5", "h5py")
    lists = existing_file(folder / f"{split}_files.txt")
    found: list[ClassifiedCloud] = []
    for line, name in enumerate(lists.read_text().split(), 1):
        # The lists have paths relative to another folder, so only the file's name is used.
        path = folder / Path(name).name
        if not path.is_file():
            raise FileFormatError(f"{lists}:{line}: no file {path}")
        with reading(path, "HDF5"), h5py.File(path, "r") as file:
            labels = _labels(file, path)
        outside = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if len(outside):
            raise FileFormatError(
                f"{path}: cloud {outside[0]} has the label {labels[outside[0]]}, outside the "
                f"{len(classes)} classes 0 to {len(classes) - 1} that {SHAPES} names"
            )
        found += [ClassifiedCloud(str(path), int(k), item) for item, k in enumerate(labels)]
    if not found:
        raise FileFormatError(f"{lists} names no clouds")
    return found


def _labels(file: Any, path: Path) -> np.ndarray:
    """Return the classes of the B clouds in an HDF5 file, int64 [B], after checking shapes."""
    data, label = (file.get(name) for name in ("data", "label"))
    shapes = [None if one is None else getattr(one, "shape", None) for one in (data, label)]
    if shapes[0] is None or shapes[1] is None or len(shapes[0]) != 3 or shapes[0][2] < 3:
        raise FileFormatError(
            f"{path} has data of shape {shapes[0]} and label of shape {shapes[1]}: it must have "
            "data [B, N, 3] and label [B] or [B, 1]"
        )
    if shapes[1] not in ((shapes[0][0],), (shapes[0][0], 1)):
        raise FileFormatError(
            f"{path} has {shapes[0][0]} clouds, and label of shape {shapes[1]}: give one for each"
        )
    check_unpacked(path, label.nbytes)
    return np.asarray(label[()], np.int64).reshape(-1)


class ModelNet(Layout):
    """List the clouds in a ModelNet folder; one cloud is one object with its class.

    The names of :meth:`scans` are a single split, ``train`` or ``test``, or clouds, such as
    ``airplane_0001``.
    """

    task = "classify"
    marks = (f"*{SHAPES}", "*/train/*.off")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.class_names = class_names(folder)

    def split(self, name: str) -> Sequence[str]:
        return ("train",) if name == "train" else ("test",)

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[ClassifiedCloud]:
        del labeled
        return cloud_split(self.folder, names, self.class_names)


PART_COLUMNS = ("x", "y", "z", "nx", "ny", "nz", "label")
PARTS = {
    "airplane": 4, "bag": 2, "cap": 2, "car": 4, "chair": 4, "earphone": 3, "guitar": 3,
    "knife": 2, "lamp": 4, "laptop": 2, "motorbike": 6, "mug": 2, "pistol": 3, "rocket": 3,
    "skateboard": 3, "table": 3,
}  # fmt: skip
"""The number of parts of each category; the parts of all categories are numbered from 0 to 49."""

LISTS = "train_test_split/shuffled_{}_file_list.json"
_MOST_LISTED = 64 * MEBIBYTE


@dataclass(frozen=True)
class PartCloud(PathTask):
    """Callable that reads the cloud of one ShapeNet object from the text file `path`.

    If `labeled`, the label of a point is the index of its part, from 0 to 49.
    """

    path: str
    labeled: bool = True

    def __call__(self) -> PointCloud:
        cloud = read(self.path, columns=PART_COLUMNS)
        if not self.labeled:
            return cloud.with_labels(None)
        labels = cloud.labels
        number = sum(PARTS.values())
        if labels is None or labels.min() < 0 or labels.max() >= number:
            raise FileFormatError(
                f"{self.path}: the seventh column must be a part from 0 to {number - 1}"
            )
        return cloud


class ShapeNetPart(Layout):
    """List the clouds with part labels in a ShapeNet folder; names are like ``02691156/NAME``."""

    marks = ("synsetoffset2category.txt",)
    class_names = tuple(f"{name} {part}" for name, count in PARTS.items() for part in range(count))
    attributes = ("normals",)

    def split(self, name: str) -> Sequence[str]:
        path = self.folder / LISTS.format("val" if name == "validation" else name)
        names = bounded_json(path, _MOST_LISTED)
        if not isinstance(names, list):
            raise FileFormatError(f"{path} is no list of names in JSON")
        return [str(entry).removeprefix("shape_data/") for entry in names]

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[PartCloud]:
        found = []
        for name in names:
            path = self.folder / f"{name}.txt"
            if not path.is_file():
                raise FileFormatError(f"cloud {name!r} has no file {path}")
            found.append(PartCloud(str(path), labeled))
        return found
