"""Find the labeled scans in a folder of a published data set, for training and validation.

:func:`dataset` returns one tuple of tasks for training and one for validation. A task is a callable
that reads one scan. It contains paths, and for some data sets boxes, but no points. It is therefore
small enough to be sent to a worker process. Each way to arrange the files of a data set in folders
is a :class:`voxax.io.layout.Layout` in a separate module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxax.errors import FileFormatError, InputError
from voxax.io.argoverse2 import Argoverse2
from voxax.io.kitti_objects import KittiObjectFolder, Waymo
from voxax.io.labeled_files import LabeledFiles
from voxax.io.layout import Layout, Task
from voxax.io.nuscenes import MOST_SWEEPS, Nuscenes, NuscenesLidarseg
from voxax.io.object_clouds import ModelNet, ShapeNetPart
from voxax.io.pointcept import S3disArrays, ScanNet200Arrays, ScanNetArrays
from voxax.io.s3dis import S3dis
from voxax.io.scannet import ScanNet, ScanNet200
from voxax.io.semantic_kitti import SemanticKitti

LAYOUTS: dict[str, type[Layout]] = {
    "semantic_kitti": SemanticKitti,
    "scannet": ScanNet,
    "scannet200": ScanNet200,
    "scannet_pointcept": ScanNetArrays,
    "scannet200_pointcept": ScanNet200Arrays,
    "s3dis": S3dis,
    "s3dis_pointcept": S3disArrays,
    "shapenet_part": ShapeNetPart,
    "files": LabeledFiles,
    "waymo": Waymo,  # before kitti: its folders have the marks of kitti too
    "kitti": KittiObjectFolder,
    "nuscenes": Nuscenes,
    "nuscenes_lidarseg": NuscenesLidarseg,
    "argoverse2": Argoverse2,
    "modelnet": ModelNet,
}
FORMATS = {name: layout.task for name, layout in LAYOUTS.items()}
"""What a network learns from each layout, e.g. ``"detect"``; keys are the layouts' names."""


@dataclass(frozen=True)
class Dataset:
    """The scans of a data set for training and for validation.

    Attributes:
      train, validation: callables that read one scan each. A call returns a
          :class:`voxax.io.PointCloud` with labels 0, 1, ..., and -1 for unknown. For data sets
          with boxes it returns a :class:`voxax.io.annotated.AnnotatedScan`.
      class_names: the names of labels 0, 1, ...; for boxes, the names of the classes to learn.
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
    sweeps: int = 1,
) -> Dataset:
    """List the training and validation scans in a data set's folder, without reading them.

    Args:
      kind: name of the data set's layout, a key of ``FORMATS``.
      folder: the folder with ``sequences`` (SemanticKITTI), ``scans`` (ScanNet), ``training``
          (KITTI, Waymo), ``v1.0-*`` (nuScenes), the classes (ModelNet), or the files.
      train, validation: names of sequences, scenes, frames or clouds; or patterns of files
          relative to `folder`, such as ``train/*.npz``. None takes the split that comes with
          the data set, such as KITTI's ``ImageSets/train.txt`` and ``val.txt``.
      classes: a dict from class ids in the files to class names, in the order of the network's
          classes. Ids with the same name are one class. All other ids become unknown (-1). For
          ``files`` only.
      columns, label_field: see :func:`voxax.io.read`. For ``files`` only.
      sweeps: number of sweeps for each key frame, for ``nuscenes`` only. Earlier sweeps are moved
          into the coordinates of the key frame, and the attribute ``time`` is their age in seconds.

    Raises:
      InputError: the kind is unknown, a split or `classes` is missing, an id is negative, an
          argument is not for this layout, or a scan is in both splits.
      FileFormatError: the folder, or a file or folder in it, is missing or broken.
    """
    given: dict[str, Any] = {"columns": columns, "label_field": label_field, "sweeps": sweeps}
    layout = layout_of(kind, folder, classes, **given)
    to_train = scans_of(layout, chosen(layout, "train", train))
    to_validate = scans_of(layout, chosen(layout, "validation", validation))
    both = set(to_train) & set(to_validate)
    if both:
        raise InputError(
            f"{len(both)} scans are in train and in validation, such as {next(iter(both))}: a scan "
            "can be in one of them only"
        )
    return Dataset(to_train, to_validate, layout.class_names)


def layout_of(
    kind: str,
    folder: Path,
    classes: Mapping[int, str] | None = None,
    *,
    columns: int | tuple[str, ...] | None = None,
    label_field: str | None = None,
    sweeps: int = 1,
) -> Layout:
    """Return the :class:`voxax.io.layout.Layout` that lists the scans of a data set in `folder`.

    The arguments are those of :func:`dataset`. Raise InputError if `kind` is unknown or an argument
    is not for this kind, and FileFormatError if `folder` is missing or broken.
    """
    if kind not in LAYOUTS:
        raise InputError(f"format {kind!r} is unknown: give {', '.join(LAYOUTS)}")
    if kind == "files" and not classes:
        raise InputError(
            "classes is missing: give the ids in the files that count, and their names, such "
            'as {2 = "ground", 6 = "building"}'
        )
    if kind != "files" and (columns is not None or label_field is not None):
        raise InputError(f"columns and label_field are for format 'files': {kind} fixes them")
    if kind != "files" and classes is not None:
        raise InputError(f"classes is for format 'files': those of {kind} are fixed")
    if kind != "nuscenes" and sweeps != 1:
        raise InputError(f"sweeps = {sweeps} is for format 'nuscenes': {kind} has scans of one")
    if not 1 <= sweeps <= MOST_SWEEPS:
        raise InputError(f"sweeps = {sweeps} must be from 1 to {MOST_SWEEPS}")
    if not folder.is_dir():
        raise FileFormatError(f"no folder {folder}: it should hold the scans")
    with _explained(folder):
        if kind == "files":
            return LabeledFiles(folder, classes or {}, columns, label_field)
        return Nuscenes(folder, sweeps) if kind == "nuscenes" else LAYOUTS[kind](folder)


def chosen(layout: Layout, split: str, names: Sequence[str] | None) -> Sequence[str]:
    """Return `names`, or the names in the data set's published split `split` if `names` is None.

    The names are of sequences, scenes, frames or clouds, see :meth:`voxax.io.layout.Layout.scans`.
    `split` is ``train``, ``validation`` or ``test``.

    Raises:
      InputError: `names` is empty, or it is None and the data set publishes none.
    """
    names = layout.split(split) if names is None else names
    if not names:
        raise InputError(f"{split} is empty: name the scans of {layout.folder} that are for it")
    return names


def scans_of(layout: Layout, names: Sequence[str], labeled: bool = True) -> tuple[Task, ...]:
    """Return one callable for each scan that belongs to `names`; it reads the scan.

    A name may be of a sequence or scene with many scans. See
    :meth:`voxax.io.layout.Layout.scans` for the arguments and errors.
    """
    with _explained(layout.folder):
        return tuple(layout.scans(names, labeled))


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Append the hint of :func:`prepared` for `folder` to a FileFormatError in the ``with`` block.

    If there is no hint, the error stays as it is.
    """
    try:
        yield
    except FileFormatError as error:
        if not (why := prepared(folder)):
            raise
        raise FileFormatError(f"{error}; {why}") from error


def prepared(folder: Path) -> str:
    """Return a hint if a folder was prepared for MMDetection3D or OpenPCDet; otherwise ``""``.

    The hint is text for an error message. These codebases keep labels, boxes and poses in
    ``*_info*.pkl``, which voxax does not read.
    """
    pickle = next(iter(sorted(folder.glob("*_info*.pkl"))), None)
    if pickle is None:
        return ""
    return (
        f"{pickle.name} in {folder} belongs to MMDetection3D or OpenPCDet: it is a pickle, which "
        "may run code, and is not read; give the data set's own files"
    )


def recognized(folder: Path) -> str | None:
    """Detect a folder's layout from its files; return its key in ``LAYOUTS``, or None."""
    for name, layout in LAYOUTS.items():
        if any(next(iter(folder.glob(mark)), None) is not None for mark in layout.marks):
            return name
    return None
