"""NumPy archives with one array per quantity, the form that most experiments end in.

Source: the ``.npz`` format of NumPy.
"""

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import cloud_from_arrays, labels_from_arrays
from voxax.io.columns import POSITION_ARRAYS, find_name
from voxax.io.decoding import check_count, reading
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud

# Deflate, the only compression that NumPy writes, makes at most this many bytes of one.
_DEFLATE_RATIO = 1032


def read_npz(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a ``.npz`` archive.

    :func:`voxax.io.arrays.cloud_from_arrays` says what its arrays mean. Arrays of Python objects,
    which only unpickling could read, are left out.

    Raises:
        FileFormatError: the archive is broken, has no positions, or its labels have
            another length.
    """
    with reading(path, "NPZ"):
        return cloud_from_arrays(_arrays(path), str(path), options)


def read_npz_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npz`` archive; see :func:`voxax.io.arrays.labels_from_arrays`.

    Raises:
        FileFormatError: the archive is broken, or it is not clear which array is meant.
    """
    with reading(path, "NPZ"):
        return labels_from_arrays(_arrays(path), str(path), label_field)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    # NumPy would take a file without a zip directory for a pickle, and say so.
    if not zipfile.is_zipfile(path):
        raise FileFormatError(
            f"{path} ({path.stat().st_size} bytes) is not a complete zip archive, which a "
            ".npz file is: it is cut short or something else"
        )
    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            held = min(member.file_size, _DEFLATE_RATIO * member.compress_size)
            with archive.open(member) as stream:
                array = read_array(path, stream, held, f"array {name!r}")
            if array is not None:
                found[name] = array
            elif find_name(POSITION_ARRAYS, name) is not None:
                raise FileFormatError(
                    f"array {name!r} of {path} holds Python objects, which only unpickling would "
                    "read (allow_pickle), and that would run code of the file"
                )
    return found


def read_array(path: Path, stream: IO[bytes], available: int, what: str) -> np.ndarray | None:
    """Read an array that ``numpy.save`` wrote, after checking that the file can hold it.

    Args:
        path: the file, for messages.
        stream: at its begin; can seek.
        available: bytes of the array and its header, at most.
        what: names the array in messages.

    Returns:
        The array; None where it holds Python objects.

    Raises:
        FileFormatError: the array is larger than the file can hold.
        ValueError: it is broken.
    """
    version = np.lib.format.read_magic(stream)
    header = np.lib.format.read_array_header_1_0
    if version > (1, 0):
        header = np.lib.format.read_array_header_2_0
    shape, _, dtype = header(stream)
    if dtype.hasobject:
        return None
    size = math.prod(shape) * dtype.itemsize
    check_count(path, f"bytes of {what}", size, 1, available - stream.tell())
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
