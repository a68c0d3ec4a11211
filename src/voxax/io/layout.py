"""What each layout of a data set's folder offers: its classes, its splits and its scans."""

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
    """A folder in the layout of a data set; only names are read before a scan is asked for.

    Args:
      folder: exists.

    Attributes:
      task: what a network learns from it.
      marks: patterns below the folder, one of which is there.
      class_names: of the labels 0, 1, ..., or of the boxes that are learned.
      attributes: that points may have beside their positions; None where the files decide.
    """

    task: ClassVar[str] = "segment"
    marks: ClassVar[tuple[str, ...]] = ()
    class_names: tuple[str, ...]
    attributes: ClassVar[tuple[str, ...] | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def split(self, name: str) -> Sequence[str]:
        """Return what the data set's own split of ``SPLITS`` holds, empty where it has none."""
        del name
        return ()

    @abc.abstractmethod
    def scans(self, names: Sequence[str], labeled: bool = True) -> Sequence[Task]:
        """Return tasks that read the scans of some names.

        Args:
          names: of sequences, scenes, frames or clouds.
          labeled: whether the scans must have labels or boxes. Without, labels are not read.

        Raises:
          FileFormatError: a scan, or something that belongs to it, is missing or broken.
          InputError: a name that the folder does not know.
        """


def folders_with(folder: Path, mark: str, what: str) -> list[Path]:
    """Return a folder, if it has a file or folder `mark`, or else those in it that have one."""
    found = [folder] if (folder / mark).exists() else []
    found = found or sorted(own for own in folder.glob("*") if (own / mark).exists())
    if not found:
        raise FileFormatError(f"{folder} holds no {what}")
    return found


def fold(raw: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    """Return each id's place in `ids`, int32 [N]; -1 for an id that is not among them."""
    order = np.argsort(ids)
    known = np.asarray(ids)[order]
    place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
    return np.where(known[place] == raw, order[place], -1).astype(np.int32)
