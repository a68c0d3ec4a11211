"""Folders of labelled scans, in the layouts that data sets come in.

A data set is two lists of tasks: each reads one scan when it is called, in the data set's classes.
Tasks hold paths only, so that worker processes take them, and scans are in memory one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voxax.errors import FileFormatError, InputError
from voxax.io.labelled_files import labelled_files
from voxax.io.point_cloud import PointCloud
from voxax.io.scannet import SCANNET_CLASS_NAMES, scannet_scenes
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES
from voxax.io.semantic_kitti_folder import TRAIN, VALIDATION, semantic_kitti_scans

Task = Callable[[], PointCloud]

FORMATS = ("semantic_kitti", "scannet", "files")


@dataclass(frozen=True)
class Dataset:
    """Scans to train on and to validate with.

    Attributes:
        train, validation: tasks; what they return has labels 0, 1, ..., and -1 where unknown.
        class_names: of these labels.
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
) -> Dataset:
    """Find the scans of a folder; only names are read.

    Args:
        kind: of ``FORMATS``.
        folder: that holds ``sequences`` (SemanticKITTI) or ``scans`` (ScanNet), or the files.
        train, validation: names of sequences, names of scenes, or patterns of files relative to
            `folder`, such as ``train/*.npz``. None takes SemanticKITTI's own split.
        classes: for ``files``, the names of the ids that count, in the network's order; other
            ids are unknown.

    Raises:
        InputError: an unknown kind, a split or classes that are missing or not the layout's, or
            a scan in both splits.
        FileFormatError: the folder, or something in it, is missing.
    """
    if kind not in FORMATS:
        raise InputError(f"format {kind!r} is unknown: give {', '.join(FORMATS)}")
    if not folder.is_dir():
        raise FileFormatError(f"there is no folder {folder}, which was to hold the scans")
    if kind == "semantic_kitti":
        train = TRAIN if train is None else train
        validation = VALIDATION if validation is None else validation
    if not train or not validation:
        which = "train" if not train else "validation"
        raise InputError(f"{which} is empty: name the scans of {folder} that are for it")
    if kind == "files":
        if not classes:
            raise InputError(
                "classes is missing: give the ids in the files that count, and their names, such "
                'as {2 = "ground", 6 = "building"}'
            )
        ids = tuple(classes)

        def found(names: Sequence[str]) -> Sequence[Task]:
            return labelled_files(folder, names, ids)

        names = tuple(classes.values())
    elif classes is not None:
        raise InputError(f"classes is for format 'files': those of {kind} are fixed")
    elif kind == "semantic_kitti":

        def found(names: Sequence[str]) -> Sequence[Task]:
            return semantic_kitti_scans(folder, names)

        names = SEMANTIC_KITTI_CLASS_NAMES
    else:

        def found(names: Sequence[str]) -> Sequence[Task]:
            return scannet_scenes(folder, names)

        names = SCANNET_CLASS_NAMES
    parts = tuple(found(train)), tuple(found(validation))
    both = set(parts[0]) & set(parts[1])
    if both:
        raise InputError(
            f"{len(both)} scans are in train and in validation, such as {next(iter(both))}: a scan "
            "can be in one of them only"
        )
    return Dataset(*parts, tuple(names))
