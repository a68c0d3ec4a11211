"""Files with one label per point, kept beside the scan."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.files import existing_file, reading
from voxax.io.kitti import read_packed_labels
from voxax.io.npz import read_npz_labels
from voxax.io.point_cloud import as_labels

LabelReader = Callable[[Path], tuple[np.ndarray, dict[str, np.ndarray]]]


def read_npy_labels(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read whole numbers [N] saved by ``numpy.save``.

    Raises:
        FileFormatError: the file is broken, or holds something else.
    """
    with reading(path, "NPY"), path.open("rb") as stream:
        return as_labels(np.lib.format.read_array(stream, allow_pickle=False)), {}


LABEL_READERS: dict[str, LabelReader] = {
    ".label": read_packed_labels,
    ".npy": read_npy_labels,
    ".npz": read_npz_labels,
}


def read_labels(path: str | os.PathLike[str]) -> np.ndarray:
    """Read the labels of a scan.

    Args:
        path: a SemanticKITTI ``.label`` (raw ids, without the object numbers), a
            ``.npy`` or a ``.npz``.

    Returns:
        int32 [N].

    Raises:
        FileFormatError: missing, of another kind, or broken.
    """
    return read_labels_and_attributes(path)[0]


def read_labels_and_attributes(
    path: str | os.PathLike[str],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Like :func:`read_labels`, with what else the file says of each point, by name.

    Raises:
        FileFormatError: missing, of another kind, or broken.
    """
    found = existing_file(path)
    reader = LABEL_READERS.get(found.suffix.lower())
    if reader is None:
        raise FileFormatError(
            f"cannot read labels from {found}: its name ends in {found.suffix or 'nothing'}, "
            f"labels come from {', '.join(LABEL_READERS)}"
        )
    return reader(found)
