"""Read NumPy files: ``.npy`` with one array of points or of labels, ``.npz`` with named arrays.

Source: the ``.npy`` and ``.npz`` formats of NumPy.
"""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import (
    MOST_COLUMNS,
    POINTS,
    cloud_from_arrays,
    cloud_from_items,
    labels_from_arrays,
)
from voxax.io.columns import POSITION_ARRAYS, find_name
from voxax.io.decoding import check_count, check_unpacked, reading
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud

# Largest ratio of unpacked to packed bytes in deflate, the only compression that NumPy writes.
_DEFLATE_RATIO = 1032


def read_npz(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a point cloud from a ``.npz`` archive.

    :func:`voxax.io.arrays.cloud_from_arrays` converts the arrays. Arrays of Python objects are left
    out, because reading them would run code in the file.
    """
    with archive(path) as arrays:
        return cloud_from_arrays(arrays, str(path), options)


def read_npz_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npz`` archive; see :func:`voxax.io.arrays.labels_from_arrays`."""
    with archive(path) as arrays:
        return labels_from_arrays(arrays, str(path), label_field)


class StoredArray:
    """An array in a ``.npz`` archive, whose values are read when NumPy converts this object."""

    def __init__(
        self,
        path: Path,
        stored: zipfile.ZipFile,
        member: zipfile.ZipInfo,
        unpacked: dict[str, int],
    ) -> None:
        self._path, self._stored, self._member = path, stored, member
        self._unpacked = unpacked  # sizes in bytes of the arrays that were read, by name
        self.name = member.filename.removesuffix(".npy")
        with stored.open(member) as stream:
            self.shape, _, self.dtype = _header(stream)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # each call reads the file again
        member = self._member
        held = min(member.file_size, _DEFLATE_RATIO * member.compress_size)
        size = math.prod(self.shape) * self.dtype.itemsize
        check_count(self._path, f"bytes of array {self.name!r}", size, 1, held)
        self._unpacked[self.name] = size
        check_unpacked(self._path, sum(self._unpacked.values()))
        with self._stored.open(member) as stream:
            array = read_array(self._path, stream, f"array {self.name!r}", held)
        return array if dtype is None else array.astype(dtype)


@contextmanager
def archive(path: Path) -> Iterator[dict[str, Any]]:
    """Open a ``.npz`` archive; yield its arrays by name, as :class:`StoredArray` objects.

    An array is unpacked when it is used. Arrays of Python objects are left out. If an array of
    objects has a name for positions, FileFormatError is raised.
    """
    with reading(path, "NPZ"):
        # For a file without a zip directory, NumPy's message would be about pickle.
        if not zipfile.is_zipfile(path):
            raise FileFormatError(
                f"{path} ({path.stat().st_size} bytes) is not a complete zip archive, which a "
                ".npz file is: it is cut short or something else"
            )
        with zipfile.ZipFile(path) as stored:
            found, unpacked = {}, dict[str, int]()
            for member in stored.infolist():
                array = StoredArray(path, stored, member, unpacked)
                if not array.dtype.hasobject:
                    found[array.name] = array
                elif find_name(POSITION_ARRAYS, array.name) is not None:
                    raise FileFormatError(
                        f"array {array.name!r} of {path} holds Python objects, which only "
                        "unpickling would read (allow_pickle), and that would run code of the file"
                    )
            yield found


def read_array(
    path: Path, stream: IO[bytes], what: str, available: int | None = None
) -> np.ndarray:
    """Read an array that ``numpy.save`` wrote, after checking that the file is large enough.

    The stream must be at its beginning, and support seek. `path` and `what`, the names of the file
    and of the array, are for messages. `available` is the largest possible size of header and array
    in bytes; None takes the size of the stream. Raise FileFormatError for Python objects.
    """
    if available is None:
        available = stream.seek(0, 2)
        stream.seek(0)
    shape, _, dtype = _header(stream)
    if dtype.hasobject:
        raise FileFormatError(f"{what} of {path} holds Python objects, which are not read")
    size = math.prod(shape) * dtype.itemsize
    check_count(path, f"bytes of {what}", size, 1, available - stream.tell())
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header that ``numpy.save`` wrote: shape, whether in Fortran order, dtype."""
    version = np.lib.format.read_magic(stream)
    if version not in READ_HEADER:
        raise FileFormatError(f"version {version} of NumPy's format: 1 and 2 are read")
    return READ_HEADER[version](stream)


READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(path: Path, options: ReadOptions) -> PointCloud:
    """Read a point cloud from a ``.npy`` file, which ``numpy.save`` wrote.

    The array is [N, k], structured [N], or [B, N, k], which is B clouds of N points.
    :func:`voxax.io.arrays.cloud_from_items` converts it.
    """
    with reading(path, "NPY"):
        return cloud_from_items({POINTS: read_npy_array(path)}, str(path), options)


def read_npy_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npy`` file; see :func:`voxax.io.arrays.labels_from_arrays`."""
    with reading(path, "NPY"):
        arrays = {path.stem: np.array(read_npy_array(path))}
        return labels_from_arrays(arrays, str(path), label_field)


def is_points(path: Path) -> bool:
    """Return whether the array of a ``.npy`` file can be points.

    Points are a structured array, or an array of 2 or more axes whose last one has length 3 to 16.
    """
    array = read_npy_array(path)
    return array.dtype.names is not None or (
        array.ndim > 1 and 3 <= array.shape[-1] <= MOST_COLUMNS
    )


def read_npy_array(path: Path) -> np.ndarray:
    """Memory-map the array of a ``.npy`` file, without reading its values.

    Raise FileFormatError if the array has Python objects, or if the file is too small for the
    array.
    """
    with reading(path, "NPY"), path.open("rb") as stream:
        shape, fortran, dtype = _header(stream)
        if dtype.hasobject or dtype.itemsize == 0 or min(shape, default=0) < 0:
            raise FileFormatError(f"{path} holds {dtype} of shape {list(shape)}, not numbers")
        start = stream.tell()
        left = path.stat().st_size - start
        check_count(path, "numbers", math.prod(shape), dtype.itemsize, left)
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
