"""NumPy archives with one array per quantity, the form that most experiments end in.

Source: the ``.npz`` format of NumPy. The names of the arrays are a convention of this
package, and take in the usual ones.
"""

import zipfile
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.decoding import reading
from voxax.io.point_cloud import LABEL_NAMES, PointCloud, as_labels

POSITION_NAMES = ("xyz", "positions", "points")
ORIGIN_NAME = "origin"


def read_npz(path: Path) -> PointCloud:
    """Read a ``.npz`` archive.

    ``xyz``, ``positions`` or ``points`` [N, 3] holds the positions, to which ``origin``
    (float64 [3]) is added where present. The first of ``label``, ``labels``,
    ``semantic``, ``class`` and ``classification`` holds the labels. Every other numeric
    array with N rows is an attribute; arrays with another number of rows are not of
    the points, and are left out.

    Raises:
        FileFormatError: the archive is broken, has no positions, or its labels have
            another length.
    """
    with reading(path, "NPZ"), _archive(path) as arrays:
        name = _first(POSITION_NAMES, arrays)
        if name is None:
            raise FileFormatError(
                f"{path} has no {', '.join(POSITION_NAMES)}; its arrays are "
                f"{', '.join(arrays.files) or 'none'}"
            )
        positions = arrays[name].astype(np.float64)
        if ORIGIN_NAME in arrays:
            positions = positions + arrays[ORIGIN_NAME].astype(np.float64)
        label_name = _first(LABEL_NAMES, arrays)
        attributes = {}
        for other in arrays.files:
            if other not in (name, ORIGIN_NAME, label_name):
                values = arrays[other]
                if values.ndim in (1, 2) and len(values) == len(positions):
                    attributes[other] = values
        labels = None if label_name is None else arrays[label_name]
        return PointCloud(positions, attributes, labels, str(path))


def read_npz_labels(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npz`` archive: an array with a usual name, or the only one.

    Returns:
        int32 [N], and ``{"instance": int32 [N]}`` where the archive has that array.

    Raises:
        FileFormatError: the archive is broken, or it is not clear which array is meant.
    """
    with reading(path, "NPZ"), _archive(path) as arrays:
        name = _first(LABEL_NAMES, arrays)
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


def _first(names: tuple[str, ...], arrays) -> str | None:
    return next((name for name in names if name in arrays), None)
