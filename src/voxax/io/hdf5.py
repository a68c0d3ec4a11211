"""Read HDF5 files: named arrays of one or many clouds, such as ModelNet40 and LArTPC data sets.

Source: the HDF5 format of the HDF Group, as read by h5py.
"""

import struct
import zlib
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.arrays import chosen_items, cloud_from_items, joined_items
from voxax.io.columns import cloud_from_columns, named_rows
from voxax.io.decoding import check_unpacked, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

# HDF5 data sets in files of PILArNet-M. Each has one list of numbers for each event.
EVENTS, CLUSTERS = "point", "cluster"
EVENT_COLUMNS = ("x", "y", "z", "energy", "column_4", "time", "column_6", "column_7")
# The first column is the number of points, and the last is the class.
CLUSTER_COLUMNS = 5


def read_hdf5(path: Path, options: ReadOptions) -> PointCloud:
    """Read the points of an HDF5 file (``.h5`` or ``.hdf5``).

    :func:`voxax.io.arrays.cloud_from_items` converts the file's arrays. The name of an array is
    the last part of its path in the file. ModelNet40's arrays (``data``, ``label``) contain many
    clouds. In files of PILArNet, each event of a LArTPC (a particle detector) is a cloud. Its
    points, with ``energy`` and ``time``, are in the data set ``point``. The data set ``cluster``
    divides the points into clusters: a point gets the label of its cluster, and the attribute
    ``instance`` is the index of its cluster.
    """
    h5py = import_extra(f"reading {path.suffix.lower()}", "hdf5", "h5py")
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        sets = _data_sets(h5py, file, path)
        if all(name in sets and _is_list(h5py, sets[name]) for name in (EVENTS, CLUSTERS)):
            _check_heaps(path)
            for name in (EVENTS, CLUSTERS):
                _check_lists(h5py, path, name, sets[name])
            columns = _events(path, sets, options)
            return cloud_from_columns(columns, str(path), options.label_field)
        arrays = {name: found for name, found in sets.items() if found.dtype.kind in "biufV"}
        return cloud_from_items(arrays, str(path), options)


def _data_sets(h5py: ModuleType, file: Any, path: Path) -> dict[str, Any]:
    """Return the data sets of an HDF5 file by name, without scalars.

    A name is the last part of a data set's path, or the whole path if two paths end in this part.
    Raise FileFormatError if the data sets together are larger than the limit of
    :func:`voxax.io.decoding.check_unpacked`, or if one of them is stored in another file.
    """
    found: dict[str, Any] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            found[name] = item

    file.visititems(keep)
    for name, item in found.items():
        if item.external is not None or item.is_virtual:
            raise FileFormatError(f"data set {name} of {path} lies in another file")
    # All data sets are read, so the sum of their sizes counts.
    check_unpacked(path, sum(item.nbytes for item in found.values()))
    last = [name.rpartition("/")[2] for name in found]
    return {
        short if last.count(short) == 1 else name: item
        for short, (name, item) in zip(last, found.items(), strict=True)
    }


def _is_list(h5py: ModuleType, item: Any) -> bool:
    return h5py.check_vlen_dtype(item.dtype) is not None and len(item.shape) == 1


def _check_heaps(path: Path) -> None:
    """Raise FileFormatError if a heap, where HDF5 stores lists of any length, has impossible sizes.

    HDF5 loops forever on some of these sizes. Source: "Global Heap" of the HDF5 File Format
    Specification 3.0.
    """
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        heap = content.find(b"GCOL")
        while heap >= 0:
            (size,) = struct.unpack_from("<Q", content[heap + 8 : heap + 16].ljust(8, b"\0"))
            place, end = heap + 16, heap + size
            while place + 16 <= end <= len(content):
                index, length = struct.unpack_from("<H6xQ", content, place)
                if index == 0 and length < 16:
                    # The size of free space includes the header. A smaller size loops forever.
                    break
                place += length if index == 0 else 16 + -(-length // 8) * 8
            if not end - 16 < place <= end <= len(content):
                raise FileFormatError(f"{path} is broken: its lists have impossible sizes")
            heap = content.find(b"GCOL", heap + 4)


def _check_lists(h5py: ModuleType, path: Path, name: str, stored: Any) -> None:
    """Raise FileFormatError if a list in the data set `stored` is longer than the file.

    HDF5 would allocate such a list without a check. `name` is the data set's name for the message.
    Source: "Variable-length datatype" of the HDF5 File Format Specification 3.0.
    """
    plan = stored.id.get_create_plist()
    address = stored.file.id.get_create_plist().get_sizes()[0]
    row = np.dtype([("length", "<u4"), ("address", f"V{address}"), ("index", "<u4")])
    most = path.stat().st_size // h5py.check_vlen_dtype(stored.dtype).itemsize
    for content in _stored_bytes(h5py, path, plan, stored, row.itemsize):
        lengths = np.frombuffer(content, row, len(content) // row.itemsize)["length"]
        longest = int(lengths.max(initial=0))
        if longest > most:
            raise FileFormatError(
                f"{path} is broken: a list of {name} has {longest} numbers, and the file room for "
                f"{most}"
            )


def _stored_bytes(
    h5py: ModuleType, path: Path, plan: Any, stored: Any, row: int
) -> Iterator[bytes]:
    """Yield the raw bytes of each chunk of the HDF5 data set `stored`, after decompression.

    `plan` is the data set's creation property list, an object of h5py. `row` is the number of bytes
    of one row. Raise FileFormatError if the data are packed in another way than by gzip or lzf.
    """
    if plan.get_layout() == h5py.h5d.CONTIGUOUS:
        if (start := stored.id.get_offset()) is not None:
            with path.open("rb") as stream:
                stream.seek(start)
                yield stream.read(len(stored) * row)
        return
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    known = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_LZF}
    if plan.get_layout() != h5py.h5d.CHUNKED or not set(filters) <= known:
        raise FileFormatError(f"{path} packs its lists in another way than gzip and lzf: repack it")
    size = stored.chunks[0] * row
    for number in range(stored.id.get_num_chunks()):
        chunk = stored.id.get_chunk_info(number)
        left_out, content = stored.id.read_direct_chunk(chunk.chunk_offset)
        for place in reversed(range(len(filters))):
            if left_out >> place & 1:
                continue
            if filters[place] == h5py.h5z.FILTER_DEFLATE:
                content = zlib.decompressobj().decompress(content, size)
            elif filters[place] == h5py.h5z.FILTER_LZF:
                lzf = import_extra("reading lists of .h5 packed with lzf", "io", "lzf")
                content = lzf.decompress(content, size) or b""
            else:
                content = np.frombuffer(content, np.uint8).reshape(row, -1).T.tobytes()
        yield content


def _events(path: Path, sets: dict[str, Any], options: ReadOptions) -> dict[str, np.ndarray]:
    """Return the N points of the events that ``options.item`` selects, as columns [N] by name.

    An event is one image of a liquid-argon particle detector. Its points are stored cluster by
    cluster; the cluster's number becomes the column ``instance``, and its class ``label``. `sets`
    are the file's data sets by name. Source: the loaders of PILArNet-M.
    """
    events, clusters = sets[EVENTS], sets[CLUSTERS]
    parts: list[dict[str, np.ndarray]] = []
    chosen = chosen_items(options.item, min(len(events), len(clusters)), str(path))
    for index in chosen:
        rows = _reshaped(events[index], len(EVENT_COLUMNS), path)
        about = _reshaped(clusters[index], CLUSTER_COLUMNS, path)
        sizes = about[:, 0].astype(np.int64)
        if (sizes < 0).any() or sizes.sum() != len(rows):
            raise FileFormatError(
                f"event {index} of {path} has {len(rows)} points, its clusters {sizes.sum()}"
            )
        part = named_rows(rows, options.columns or EVENT_COLUMNS, str(path))
        part["instance"] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        part["label"] = np.repeat(about[:, -1], sizes)
        parts.append(part)
    if not parts:
        raise FileFormatError(f"{path} holds no events")
    return joined_items(parts, chosen)


def _reshaped(values: np.ndarray, width: int, path: Path) -> np.ndarray:
    if len(values) % width:
        raise FileFormatError(
            f"{path} holds a list of {len(values)} numbers, which are no rows of {width} columns"
        )
    return values.reshape(-1, width)
