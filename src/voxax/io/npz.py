"""NumPy archives with one array per quantity, the form that most experiments end in.

Source: the ``.npz`` format of NumPy.
"""

import zipfile
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import cloud_from_arrays, first_of
from voxax.io.decoding import reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import LABEL_NAMES, PointCloud, as_labels


def read_npz(path: Path, options: ReadOptions) -> PointCloud:
    """Read a ``.npz`` archive.

    :func:`voxax.io.arrays.cloud_from_arrays` says what its arrays mean.

    Raises:
        FileFormatError: the archive is broken, has no positions, or its labels have
            another length.
    """
    with reading(path, "NPZ"), _archive(path) as arrays:
        return cloud_from_arrays(arrays, str(path))


def read_npz_labels(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npz`` archive: an array with a usual name, or the only one.

    Returns:
        int32 [N], and ``{"instance": int32 [N]}`` where the archive has that array.

    Raises:
        FileFormatError: the archive is broken, or it is not clear which array is meant.
    """
    with reading(path, "NPZ"), _archive(path) as arrays:
        name = first_of(LABEL_NAMES, arrays)
        if name is None and len(arrays.files) == 1:
            (name,) = arrays.files
        if name is None:
            raise FileFormatError(
                f"{path} has no {', '.join(LABEL_NAMES)}; its arrays are "
                f"{', '.join(arrays.files) or 'none'}"
            )
        attributes = {}
        if "instance" in arrays and name != "instance":
            attributes["instance"] = as_labels(arrays["instance"])
        return as_labels(arrays[name]), attributes


def _archive(path: Path) -> np.lib.npyio.NpzFile:
    # NumPy would take a file without a zip directory for a pickle, and say so.
    if not zipfile.is_zipfile(path):
        raise FileFormatError(
            f"{path} ({path.stat().st_size} bytes) is not a complete zip archive, which a "
            ".npz file is: it is cut short or something else"
        )
    return np.load(path, allow_pickle=False)
