"""Find and read labeled scans in files of any format that voxax reads, by file name patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError, InputError, listed
from voxax.io.arrays import ITEM
from voxax.io.decoding import GZIP
from voxax.io.formats import LABEL_READERS, extension_of, read, readable_extensions
from voxax.io.layout import Layout, PathTask, fold
from voxax.io.point_cloud import PointCloud

# Files with these endings may also be lists, tables, arrays or checkpoints. They are scans only if
# the pattern ends in one of these endings.
OTHER_USES = (".csv", ".npy", ".pt", ".pth", ".txt")


@dataclass(frozen=True)
class LabeledFile(PathTask):
    """Callable that reads one scan; each label becomes its class in `ids`, or -1 if not in `ids`.

    Attributes:
      points: the path of the scan.
      labels: the path of the file of labels; None if the scan itself has labels.
      ids: pairs of a known label in the files and the number of its class. If empty, no labels are
        read.
      columns, label_field: as for :func:`voxax.io.read`.
    """

    points: str
    labels: str | None
    ids: tuple[tuple[int, int], ...]
    columns: int | tuple[str, ...] | None = None
    label_field: str | None = None

    def __call__(self) -> PointCloud:
        if not self.ids:
            return read(self.points, columns=self.columns).with_labels(None)
        cloud = self._read()
        # Scans in these formats have poses, so that all clouds are in the frame of one place.
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
        ids, classes = zip(*self.ids, strict=True)
        # An unknown label has the index -1, which takes the last class.
        return cloud.with_labels(np.asarray([*classes, -1])[fold(cloud.labels, ids)])

    def labels_found(self) -> list[int]:
        """Read the scan, and return the different labels in its files, in ascending order."""
        labels = self._read().labels
        return [] if labels is None else np.unique(labels).tolist()

    def _read(self) -> PointCloud:
        return read(self.points, self.labels, columns=self.columns, label_field=self.label_field)


def labeled_files(
    folder: Path,
    patterns: Sequence[str],
    ids: tuple[tuple[int, int], ...],
    columns: int | tuple[str, ...] | None = None,
    label_field: str | None = None,
) -> list[LabeledFile]:
    """Return one callable for each scan below `folder` that matches one of the `patterns`.

    Scans of a pattern are sorted by name. A scan that matches several patterns is returned once. If
    a file next to the scan has the same name with an ending for labels, such as ``.label``, labels
    are read from this file. Files with the ending ``.csv``, ``.npy``, ``.pt``, ``.pth`` or
    ``.txt`` may have other content, so they are scans only if the pattern has one of these endings.
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
        # A .npy or .npz file with the labels of a scan is not a scan.
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


class LabeledFiles(Layout):
    """List scans of any format in a folder that match patterns such as ``train/*.npz``.

    The names of :meth:`scans` are such patterns, relative to the folder. The argument `classes` is
    a dict from the labels in the files to class names, in the order of the network's classes; any
    other label becomes -1. Labels with the same name are one class.

    Raises:
      InputError: a label in `classes` is negative.
    """

    def __init__(
        self,
        folder: Path,
        classes: Mapping[int, str],
        columns: int | tuple[str, ...] | None = None,
        label_field: str | None = None,
    ) -> None:
        super().__init__(folder)
        if negative := [label for label in classes if label < 0]:
            raise InputError(
                f"classes has the ids {listed(negative)}: ids are at least 0, since negative "
                "labels mean unknown; give these points another id in the files"
            )
        self.class_names = tuple(dict.fromkeys(classes.values()))
        self._ids = tuple((key, self.class_names.index(name)) for key, name in classes.items())
        self._columns, self._label_field = columns, label_field

    def scans(self, names: Sequence[str], labeled: bool = True) -> list[LabeledFile]:
        given = self._ids if labeled else (), self._columns, self._label_field
        return labeled_files(self.folder, names, *given)
