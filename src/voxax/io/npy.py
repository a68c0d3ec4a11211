"""``.npy``: one array of points, or of labels.

Source: the ``.npy`` format of NumPy.
"""

import math
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import labels_from_arrays
from voxax.io.decoding import check_count, reading
from voxax.io.items import MOST_COLUMNS, POINTS, cloud_from_items
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(path: Path, options: ReadOptions) -> PointCloud:
    """Read points saved by ``numpy.save``: [N, k], a table [N], or [B, N, k], which is B clouds.

    :func:`voxax.io.items.cloud_from_items` says what they mean.

    Raises:
        FileFormatError: the file is broken or cut short, or holds labels or something else.
    """
    with reading(path, "NPY"):
        return cloud_from_items({POINTS: _array(path)}, str(path), options)


def read_npy_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels [N] saved by ``numpy.save``, or a field of a structured array.

    Raises:
        FileFormatError: the file is broken, or holds something else.
    """
    with reading(path, "NPY"):
        return labels_from_arrays({path.stem: np.array(_array(path))}, str(path), label_field)


def is_points(path: Path) -> bool:
    """Return whether a ``.npy`` holds points, rather than a label for each point.

    Raises:
        FileFormatError: the file is broken or cut short.
    """
    with reading(path, "NPY"):
        array = _array(path)
        return array.dtype.names is not None or (
            array.ndim > 1 and 3 <= array.shape[-1] <= MOST_COLUMNS
        )


def _array(path: Path) -> np.ndarray:
    """Return the array, mapped, so that what its header claims takes no memory."""
    with path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        if version not in READ_HEADER:
            raise FileFormatError(f"{path} has version {version} of the format: 1 and 2 are read")
        shape, fortran, dtype = READ_HEADER[version](stream)
        if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
            raise FileFormatError(f"{path} holds {dtype} of shape {list(shape)}, not numbers")
        start = stream.tell()
    left = path.stat().st_size - start
    check_count(path, "numbers", math.prod(shape), dtype.itemsize, left)
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
