"""A plain folder of labelled scans, of any kind that voxax reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError, InputError
from voxax.io.labels import LABEL_READERS
from voxax.io.point_cloud import PointCloud
from voxax.io.reading import read
from voxax.io.registry import readable_extensions


@dataclass(frozen=True)
class LabelledFile:
    """Task: one scan, whose labels become places among `ids`, and -1 where they are none of them.

    Without a file of labels the scan itself has them.
    """

    points: str
    labels: str | None
    ids: tuple[int, ...]

    def __call__(self) -> PointCloud:
        cloud = read(self.points, self.labels)
        if cloud.labels is None:
            stem = Path(self.points).with_suffix("")
            raise FileFormatError(
                f"{self.points} has no labels, and beside it is no {stem.name} with an end of "
                f"{', '.join(LABEL_READERS)}"
            )
        return cloud.with_labels(fold(cloud.labels, self.ids))

    def __str__(self) -> str:
        return self.points


def labelled_files(
    folder: Path, patterns: Sequence[str], ids: tuple[int, ...]
) -> list[LabelledFile]:
    """The scans that fit the patterns, by name within each; no scan twice.

    Labels in a file beside a scan, of the same name but for its end, come before its own.

    Raises:
        FileFormatError: no scan fits a pattern.
        InputError: a pattern is empty or absolute.
    """
    found: dict[Path, LabelledFile] = {}
    for pattern in patterns:
        try:
            fitting = sorted(folder.glob(pattern))
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"{pattern!r} is no pattern of files below {folder}, such as train/*.npz: {error}"
            ) from error
        scans = [path for path in fitting if path.is_file() and _is_scan(path)]
        if not scans:
            raise FileFormatError(
                f"no file that voxax reads fits {pattern!r} in {folder}; it reads "
                f"{', '.join(readable_extensions())}"
            )
        for scan in scans:
            labels = _beside(scan)
            found[scan] = LabelledFile(str(scan), None if labels is None else str(labels), ids)
    return list(found.values())


def fold(raw: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    """Each id's place in `ids`, int32 [N]; -1 for an id that is not there."""
    order = np.argsort(ids)
    known = np.asarray(ids)[order]
    place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    return np.where(known[place] == raw, order[place], -1).astype(np.int32)


def _stem(path: Path) -> str:
    """The name without its known end, of which ``.pcd.bin`` is one."""
    ends = [end for end in readable_extensions() if path.name.lower().endswith(end)]
    return path.name[: -len(max(ends, key=len))]


def _is_scan(path: Path) -> bool:
    return path.name.lower().endswith(readable_extensions())


def _beside(scan: Path) -> Path | None:
    for end in LABEL_READERS:
        path = scan.with_name(_stem(scan) + end)
        if path != scan and path.is_file():
            return path
    return None
