"""Folders of labeled scans, in the layouts that data sets come in.

A data set is two lists of tasks: each reads one scan when it is called, in the data set's classes.
Tasks hold paths only, so that worker processes take them, and scans are in memory one at a time.

- Plain files of any kind that voxax reads.
- SemanticKITTI: ``sequences/NN``, with ``velodyne/*.bin`` and ``labels/*.label``. Source: the data
  set's page (Behley et al., "SemanticKITTI: A Dataset for Semantic Scene Understanding of LiDAR
  Sequences", 2019), which also fixes the split.
- ScanNet: ``scans/SCENE/SCENE_vh_clean_2.ply`` is a mesh whose vertices are the points, and
  ``SCENE_vh_clean_2.labels.ply`` the same mesh with an id of NYU's 40 classes for each vertex.
  Source: the data set's documentation (Dai et al., "ScanNet: Richly-annotated 3D Reconstructions
  of Indoor Scenes", CVPR 2017).
- KITTI and nuScenes with boxes: :mod:`voxax.io.kitti_objects` and :mod:`voxax.io.nuscenes`.
- Clouds with a class each: :mod:`voxax.io.modelnet`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, InputError
from voxax.io.compressed import GZIP
from voxax.io.decoding import existing_file
from voxax.io.formats import LABEL_READERS, extension_of, read, readable_extensions
from voxax.io.items import ITEM
from voxax.io.kitti import SEMANTIC_KITTI_CLASS_NAMES, to_common_classes
from voxax.io.kitti_objects import KITTI_CLASSES, image_sets, kitti_frames
from voxax.io.modelnet import class_names, cloud_split
from voxax.io.nuscenes import NUSCENES_CLASSES, NuscenesTables
from voxax.io.ply import read_ply_vertices
from voxax.io.point_cloud import PointCloud

Task = Callable[[], Any]

FORMATS = {
    "semantic_kitti": "segment",
    "scannet": "segment",
    "files": "segment",
    "kitti": "detect",
    "nuscenes": "detect",
    "modelnet": "classify",
}
"""What a network learns from each layout."""


@dataclass(frozen=True)
class Dataset:
    """Scans to train on and to validate with.

    Attributes:
        train, validation: tasks. They return a :class:`voxax.io.PointCloud` with labels 0, 1, ...,
            and -1 where unknown; of layouts with boxes a
            :class:`voxax.io.annotated.AnnotatedScan`.
        class_names: of these labels, or of the boxes that are learned.
    """

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    class_names: tuple[str, ...]


def dataset(
    kind: str,
    folder: Path,
    train: Sequence[str] | None,
    validation: Sequence[str] | None,
    classes: Mapping[int, str] | None = None,
    *,
    columns: int | tuple[str, ...] | None = None,
    label_field: str | None = None,
) -> Dataset:
    """Find the scans of a folder; of most layouts only names are read.

    Args:
        kind: of ``FORMATS``.
        folder: that holds ``sequences`` (SemanticKITTI), ``scans`` (ScanNet), ``training`` (KITTI),
            ``v1.0-*`` (nuScenes), the classes (ModelNet), or the files.
        train, validation: names of sequences, scenes, frames or clouds; or patterns of files
            relative to `folder`, such as ``train/*.npz``. None takes the split that comes with
            SemanticKITTI, KITTI (``ImageSets/train.txt``, ``val.txt``) and ModelNet.
        classes: for ``files``, the names of the ids that count, in the network's order; other
            ids are unknown.
        columns, label_field: for ``files``; see :func:`voxax.io.read`.

    Raises:
        InputError: an unknown kind, a split or classes that are missing or not the layout's, or
            a scan in both splits.
        FileFormatError: the folder, or something in it, is missing or broken.
    """
    if kind not in FORMATS:
        raise InputError(f"format {kind!r} is unknown: give {', '.join(FORMATS)}")
    if not folder.is_dir():
        raise FileFormatError(f"no folder {folder}: it should hold the scans")
    if kind != "files" and (columns is not None or label_field is not None):
        raise InputError(f"columns and label_field are for format 'files': {kind} fixes them")
    if kind != "files" and classes is not None:
        raise InputError(f"classes is for format 'files': those of {kind} are fixed")
    train = _own_split(kind, folder, 0) if train is None else train
    validation = _own_split(kind, folder, 1) if validation is None else validation
    if not train or not validation:
        which = "train" if not train else "validation"
        raise InputError(f"{which} is empty: name the scans of {folder} that are for it")
    find: Callable[[Path, Sequence[str]], Sequence[Task]]
    if kind == "files":
        if not classes:
            raise InputError(
                "classes is missing: give the ids in the files that count, and their names, such "
                'as {2 = "ground", 6 = "building"}'
            )
        given = {"ids": tuple(classes), "columns": columns, "label_field": label_field}
        find, names = partial(labeled_files, **given), tuple(classes.values())
    elif kind == "semantic_kitti":
        find, names = semantic_kitti_scans, SEMANTIC_KITTI_CLASS_NAMES
    elif kind == "scannet":
        find, names = scannet_scenes, SCANNET_CLASS_NAMES
    elif kind == "kitti":
        find, names = kitti_frames, KITTI_CLASSES
    elif kind == "nuscenes":
        tables, names = NuscenesTables(folder), NUSCENES_CLASSES  # read once for both splits
        find = lambda _, scenes: tables.samples(scenes)  # noqa: E731
    else:
        names = class_names(folder)
        find = partial(cloud_split, classes=names)
    parts = tuple(find(folder, train)), tuple(find(folder, validation))
    both = set(parts[0]) & set(parts[1])
    if both:
        raise InputError(
            f"{len(both)} scans are in train and in validation, such as {next(iter(both))}: a scan "
            "can be in one of them only"
        )
    return Dataset(*parts, names)


def _own_split(kind: str, folder: Path, part: int) -> Sequence[str]:
    """Return the split that comes with a data set, empty where none does.

    Args:
        kind, folder: as of :func:`dataset`.
        part: 0 to train on, 1 to validate with.
    """
    if kind == "semantic_kitti":
        return (TRAIN, VALIDATION)[part]
    if kind == "kitti":
        return image_sets(folder, ("train", "val")[part])
    return (("train", "test")[part],) if kind == "modelnet" else ()


# Lists, tables, arrays and checkpoints: scans only where a pattern ends in it.
OTHER_USES = (".csv", ".npy", ".pt", ".pth", ".txt")


@dataclass(frozen=True)
class LabeledFile:
    """Task that reads one scan; labels become places among `ids`, and -1 for other labels.

    Without a file of labels the scan itself has them.
    """

    points: str
    labels: str | None
    ids: tuple[int, ...]
    columns: int | tuple[str, ...] | None = None
    label_field: str | None = None

    def __call__(self) -> PointCloud:
        cloud = read(self.points, self.labels, columns=self.columns, label_field=self.label_field)
        # The scans of these have poses, which join them to one place.
        posed = (".e57", ".ptx", ".ptx.gz")
        if ITEM in cloud.attributes and extension_of(Path(self.points)) not in posed:
            number = int(cloud.attributes[ITEM].max()) + 1
            raise FileFormatError(
                f"{self.points} holds {number} clouds, which would lie one upon the other: write a "
                "file for each, of voxax.io.read(path, item=0) and so on"
            )
        if cloud.labels is None:
            stem = Path(self.points).with_suffix("")
            raise FileFormatError(
                f"{self.points} has no labels, and beside it is no {stem.name} with an end of "
                f"{', '.join(LABEL_READERS)}; label_field names a column of another name"
            )
        return cloud.with_labels(_fold(cloud.labels, self.ids))

    def __str__(self) -> str:
        return self.points


def labeled_files(
    folder: Path,
    patterns: Sequence[str],
    ids: tuple[int, ...],
    columns: int | tuple[str, ...] | None = None,
    label_field: str | None = None,
) -> list[LabeledFile]:
    """Return the scans that fit the patterns, by name within each; no scan twice.

    Labels in a file beside a scan, of the same name but for its end, come before its own. Files
    with an end of ``OTHER_USES`` are scans only where the pattern has that end.

    Raises:
        FileFormatError: no scan fits a pattern.
        InputError: a pattern is empty or absolute.
    """
    found: dict[Path, LabeledFile] = {}
    for pattern in patterns:
        try:
            fitting = sorted(folder.glob(pattern))
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"{pattern!r} is no pattern of files below {folder}, such as train/*.npz: {error}"
            ) from error
        known = readable_extensions()
        scans = [p for p in fitting if p.is_file() and _is_scan(p, pattern)]
        beside = {scan: _beside(scan) for scan in scans}
        # An array or an archive of labels is none of the scans.
        scans = [scan for scan in scans if scan not in beside.values()]
        if not scans:
            raise FileFormatError(
                f"no file that voxax reads fits {pattern!r} in {folder}; it reads "
                f"{', '.join(known)}"
            )
        for scan in scans:
            labels = None if beside[scan] is None else str(beside[scan])
            found[scan] = LabeledFile(str(scan), labels, ids, columns, label_field)
    return list(found.values())


def _fold(raw: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    """Return each id's place in `ids`, int32 [N]; -1 for an id that is not among them."""
    order = np.argsort(ids)
    known = np.asarray(ids)[order]
    place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    return np.where(known[place] == raw, order[place], -1).astype(np.int32)


def _is_scan(path: Path, pattern: str) -> bool:
    name = path.name.lower().removesuffix(GZIP)
    if not name.endswith(readable_extensions()):
        return False
    named = pattern.lower().removesuffix(GZIP).endswith(OTHER_USES)
    return named or not name.endswith(OTHER_USES)


def _beside(scan: Path) -> Path | None:
    for end in (*LABEL_READERS, *(end + GZIP for end in LABEL_READERS)):
        path = scan.with_name(scan.name[: -len(extension_of(scan))] + end)
        if path != scan and path.is_file():
            return path
    return None


TRAIN = ("00", "01", "02", "03", "04", "05", "06", "07", "09", "10")
VALIDATION = ("08",)


@dataclass(frozen=True)
class SemanticKittiScan:
    """Task that reads one sweep, in the 19 common classes."""

    points: str
    labels: str

    def __call__(self) -> PointCloud:
        cloud = read(self.points, self.labels)
        try:
            return cloud.with_labels(to_common_classes(cloud.labels))  # type: ignore[arg-type]
        except InputError as error:
            raise FileFormatError(f"{self.labels}: {error}") from error

    def __str__(self) -> str:
        return self.points


def semantic_kitti_scans(folder: Path, sequences: Sequence[str]) -> list[SemanticKittiScan]:
    """Return the sweeps of some sequences, in order of time.

    Raises:
        FileFormatError: a sequence, its sweeps or the labels of one are missing.
    """
    place = folder / "sequences"
    if not place.is_dir():
        raise FileFormatError(
            f"{folder} has no folder sequences, which the layout of SemanticKITTI begins with"
        )
    scans = []
    for name in sequences:
        own = place / name
        if not own.is_dir():
            there = ", ".join(sorted(p.name for p in place.iterdir() if p.is_dir()))
            raise FileFormatError(f"{place} has no sequence {name!r}; it has {there or 'none'}")
        sweeps = sorted((own / "velodyne").glob("*.bin"))
        if not sweeps:
            raise FileFormatError(f"{own / 'velodyne'} holds no sweeps (*.bin)")
        for sweep in sweeps:
            labels = own / "labels" / f"{sweep.stem}.label"
            if not labels.is_file():
                raise FileFormatError(
                    f"{sweep} has no labels: {labels} is missing; sequences 11 to 21 of the data "
                    "set have none"
                )
            scans.append(SemanticKittiScan(str(sweep), str(labels)))
    return scans


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
    """Task that reads the vertices of one scene, in the 20 classes; others are unknown, -1."""

    mesh: str
    labels: str

    def __call__(self) -> PointCloud:
        cloud = read_ply_vertices(existing_file(self.mesh))
        labeled = read_ply_vertices(existing_file(self.labels))
        if labeled.labels is None:
            raise FileFormatError(f"the vertices of {self.labels} have no property label")
        if len(labeled) != len(cloud):
            raise FileFormatError(
                f"{self.labels} has {len(labeled)} vertices, {self.mesh} has {len(cloud)}: they "
                "are of different meshes"
            )
        labels = _fold(labeled.labels, tuple(SCANNET_CLASSES))
        finite = np.isfinite(cloud.positions).all(axis=1)
        return replace(cloud, labels=labels).select(finite)

    def __str__(self) -> str:
        return self.mesh


def scannet_scenes(folder: Path, scenes: Sequence[str]) -> list[ScanNetScene]:
    """Return scenes by name, such as ``scene0000_00``.

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
