"""The base class for data sets in folders: it lists the classes, splits and scans."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from voxax.errors import FileFormatError

Task = Callable[[], Any]
SPLITS = ("train", "validation", "test")


class PathTask:
    """Base class of dataclasses whose calls read one scan; ``str()`` returns their first field.

    The first field of a subclass must be the path of the scan.
    """

    def __str__(self) -> str:
        return next(iter(vars(self).values()))


class Layout(abc.ABC):
    """Base class that lists the scans of a data set in a folder; each data set has a subclass.

    The constructor reads no scans. Method `scans` returns tasks: callables that read one scan each.

    Args:
      folder: the folder of the data set, which must exist.

    Attributes:
      task: what a network learns from this data: ``segment``, ``detect`` or ``classify``.
      marks: patterns of files below the folder. A folder with a file that matches one of these
        patterns is recognized as this data set.
      class_names: the names of the labels 0, 1, ..., or of the classes of boxes.
      attributes: the attributes that points may have; None if they depend on the files.
    """

    task: ClassVar[str] = "segment"
    marks: ClassVar[tuple[str, ...]] = ()
    class_names: tuple[str, ...]
    attributes: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def split(self, name: str) -> Sequence[str]:
        """Return the names in the split `name`, for :meth:`scans`; empty if there is no such split.

        `name` is ``train``, ``validation`` or ``test``. The result has names of single scans, or
        of sequences, scenes or folders that contain the scans of the split.
        """
        del name
        return ()

    @abc.abstractmethod
    def scans(self, names: Sequence[str], labeled: bool = True) -> Sequence[Task]:
        """Return a task for each scan: a callable without arguments that reads the scan.

        Args:
          names: the names of sequences, scenes, frames or clouds. A sequence or a scene may have
            several scans.
          labeled: whether the scans must have labels or boxes. If False, labels are not read.

        Raises:
          FileFormatError: a scan, or a file that belongs to it, is missing or broken.
          InputError: the folder has nothing with one of these names.
        """


def folders_with(folder: Path, mark: str, what: str) -> list[Path]:
    """Return a list of `folder` if it contains `mark`, otherwise of the subfolders that contain it.

    `mark` is the path, relative to each of these folders, of a file or folder. If no folder
    contains it, raise FileFormatError with the message that `folder` has no `what`.
    """
    found = [folder] if (folder / mark).exists() else []
    found = found or sorted(own for own in folder.glob("*") if (own / mark).exists())
    if not found:
        raise FileFormatError(f"{folder} holds no {what}")
    return found


def fold(raw: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    """Convert class ids `raw` [N] to indices into `ids`, int32 [N]; -1 for an id not in `ids`."""
    order = np.argsort(ids)
    known = np.asarray(ids)[order]
    place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    return np.where(known[place] == raw, order[place], -1).astype(np.int32)
