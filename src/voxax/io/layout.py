"""The interface of a data set in a folder: its classes, its splits and its scans."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from voxax.errors import FileFormatError

Task = Callable[[], Any]
SPLITS = ("train", "validation", "test")


class Layout(abc.ABC):
    """A folder in the layout of a data set.

    The constructor reads no scans: the tasks of `scans` read them.

    Args:
      folder: the folder of the data set, which must exist.

    Attributes:
      task: the task of a network for this data: ``segment``, ``detect`` or ``classify``.
      marks: patterns of files below the folder. A folder with a file for any of these patterns
        is taken to have this layout.
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
        """Return the names in a split of the data set, for `scans`; empty if it has no such split.

        `name` is one of ``SPLITS``.
        """
        del name
        return ()

    @abc.abstractmethod
    def scans(self, names: Sequence[str], labeled: bool = True) -> Sequence[Task]:
        """Return one task for each scan with these names; calling a task reads the scan.

        Args:
          names: the names of sequences, scenes, frames or clouds.
          labeled: whether the scans must have labels or boxes. False does not read labels.

        Raises:
          FileFormatError: a scan, or a file that belongs to it, is missing or broken.
          InputError: the folder has nothing with one of these names.
        """


def folders_with(folder: Path, mark: str, what: str) -> list[Path]:
    """Return the folders that contain a file or folder `mark`.

    This is `folder` itself if it contains one, else its subfolders that do. `what` is the
    description of the missing content in the error.
    """
    found = [folder] if (folder / mark).exists() else []
    found = found or sorted(own for own in folder.glob("*") if (own / mark).exists())
    if not found:
        raise FileFormatError(f"{folder} holds no {what}")
    return found


def fold(raw: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    """Return the index in `ids` of each raw id, int32 [N]; -1 for a raw id that is not in `ids`."""
    order = np.argsort(ids)
    known = np.asarray(ids)[order]
    place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    return np.where(known[place] == raw, order[place], -1).astype(np.int32)
