"""NumPy archives with one array per quantity, the form that most experiments end in.

Source: the ``.npz`` format of NumPy.
"""

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import cloud_from_arrays, labels_from_arrays
from voxax.io.columns import POSITION_ARRAYS, find_name
from voxax.io.compressed import check_unpacked
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
    with archive(path) as arrays:
        return cloud_from_arrays(arrays, str(path), options)


def read_npz_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read labels from a ``.npz`` archive; see :func:`voxax.io.arrays.labels_from_arrays`.

    Raises:
        FileFormatError: the archive is broken, or it is not clear which array is meant.
    """
    with archive(path) as arrays:
        return labels_from_arrays(arrays, str(path), label_field)


class StoredArray:
    """An array of an archive: its header is read at once, its values when NumPy asks for them.

    Attributes:
        shape, dtype: as of the array.
    """

    def __init__(
        self,
        path: Path,
        stored: zipfile.ZipFile,
        member: zipfile.ZipInfo,
        unpacked: dict[str, int],
    ) -> None:
        self._path, self._stored, self._member = path, stored, member
        self._unpacked = unpacked  # bytes of the archive's arrays by name, once asked for
        self.name = member.filename.removesuffix(".npy")
        with stored.open(member) as stream:
            self.shape, self.dtype = _header(stream)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # each call reads anew
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
    """Give the arrays of an archive by name, :class:`StoredArray`; of those of objects, none.

    Those that are not asked for are not unpacked.

    Raises:
        FileFormatError: the archive is broken, or positions in it are Python objects.
    """
    with reading(path, "NPZ"):
        # NumPy would take a file without a zip directory for a pickle, and say so.
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
    """Read an array that ``numpy.save`` wrote, after checking that the file can hold it.

    Args:
        path: the file, for messages.
        stream: at its begin; can seek.
        what: names the array in messages.
        available: bytes of the array and its header, at most; None for those of the stream.

    Raises:
        FileFormatError: the array is larger than the file can hold, or of Python objects.
        ValueError: it is broken.
    """
    if available is None:
        available = stream.seek(0, 2)
        stream.seek(0)
    shape, dtype = _header(stream)
    if dtype.hasobject:
        raise FileFormatError(f"{what} of {path} holds Python objects, which are not read")
    size = math.prod(shape) * dtype.itemsize
    check_count(path, f"bytes of {what}", size, 1, available - stream.tell())
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Read what ``numpy.save`` wrote before the values."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version > (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype
