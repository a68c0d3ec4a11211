"""Read LAS and its compressed form LAZ, the exchange formats of airborne and mobile scanning.

laspy reads the points, and lazrs or LASzip decompresses them. Before that, this module checks the
sizes in a LAZ file. A decoder allocates memory for as many chunks and layers as the file states. If
the allocation fails in lazrs (Rust), the process ends.

Sources: ASPRS LAS Specification 1.4; Martin Isenburg, "LASzip: lossless compression of LiDAR data",
2013; for the layers of the point formats 6 to 10, the file layout of LASzip 3.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import COLOR, cloud_from_columns
from voxax.io.decoding import check_count, is_panic, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

RECORD = struct.Struct("<H30xH")  # compressor, number of items
ITEM = struct.Struct("<HHH")  # kind, bytes, version
CHUNK_TABLE = struct.Struct("<4xI")  # number of chunks
TABLE_OFFSET = struct.Struct("<q")

# Compressors that divide the points into chunks; the second also divides a chunk into layers.
CHUNKED = (2, 3)
LAYERED = 3
BYTE_ITEM = 14
# The number of layers by the kind of an item. Each extra byte is a separate layer.
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}

# Four fields of a point change independently, and the arithmetic coder needs at least
# 2e-3 bits for the most probable symbol, so one byte encodes at most 1,000 points. Files of equal
# points have 150 in each byte, because every chunk of 50,000 restarts the coder.
POINTS_PER_BYTE = 2000


def checked_count(path: Path, stream: BinaryIO, header: Any, *, by_lazrs: bool = True) -> int:
    """Check all sizes in a LAZ file, return the number of points, and seek to the first point.

    `stream` is the open file, and `header` is laspy's header of it. `by_lazrs` is whether lazrs
    will decode the points; if so, the table of chunks is checked too. The other decoder, LASzip,
    finds the chunks itself.
    """
    record = next(iter(header.vlrs.get("LasZipVlr")), None)
    if record is None:
        raise FileFormatError(f"{path} has compressed points, but not the LASzip record for them")
    compressor, items = RECORD.unpack_from(record.record_data)
    kinds = list(
        ITEM.iter_unpack(record.record_data[RECORD.size : RECORD.size + items * ITEM.size])
    )
    point, start = header.point_format.size, header.offset_to_point_data
    size = path.stat().st_size
    if len(kinds) != items or sum(item_bytes for _, item_bytes, _ in kinds) != point:
        raise FileFormatError(f"the LASzip record of {path} does not describe its points")
    count = int(header.point_count)
    check_count(path, "points", count, 1, (size - start) * POINTS_PER_BYTE, exact=False)
    if compressor not in CHUNKED:
        stream.seek(start)
        return count
    table = _chunk_table(stream, start)
    if not start < table <= size - CHUNK_TABLE.size:
        if count == 0:
            return 0
        raise FileFormatError(f"{path} has no table of its chunks: it is cut short or broken")
    stream.seek(table)
    (chunks,) = CHUNK_TABLE.unpack(stream.read(CHUNK_TABLE.size))
    check_count(path, "chunks", chunks, 1, table - start, exact=False)
    # Without this check, lazrs would start at a wrong place and read unchecked lengths.
    if by_lazrs:
        lazrs = import_extra("reading .laz", "io", "lazrs")
        stream.seek(start)
        lazrs.read_chunk_table(stream, lazrs.LazVlr(record.record_data))
    if compressor == LAYERED:
        layers = sum(LAYERS.get(kind, item if kind == BYTE_ITEM else 0) for kind, item, _ in kinds)
        count = _checked_layers(path, stream, count, point, layers, start, table)
    elif count == 0 and table > start + TABLE_OFFSET.size:
        raise FileFormatError(
            f"the header of {path} says 0 points, and does not say how many it has compressed "
            f"into {table - start - TABLE_OFFSET.size} bytes"
        )
    stream.seek(start)
    return count


def _chunk_table(stream: BinaryIO, start: int) -> int:
    """Return the byte offset of a LAZ file's table of chunks; 0 if the file has no such table.

    The first bytes of the point data state this offset. A writer that could not seek states it in
    the last bytes of the file instead. `start` is the byte offset of the point data.
    """
    stream.seek(start)
    for _ in range(2):
        found = stream.read(TABLE_OFFSET.size)
        if len(found) < TABLE_OFFSET.size:
            break
        (offset,) = TABLE_OFFSET.unpack(found)
        if offset > start:
            return offset
        stream.seek(-TABLE_OFFSET.size, 2)
    return 0


def _checked_layers(
    path: Path, stream: BinaryIO, count: int, point: int, layers: int, start: int, end: int
) -> int:
    """Check the sizes of a LAZ file's layered chunks, and return the file's number of points.

    A chunk begins with its first point (`point` bytes), its number of points, and the sizes of its
    `layers` layers. The chunks are between the byte offsets `start` and `end` of the file. `count`
    is the number of points that the file's header states. If `count` is 0, the result is the number
    of points in all chunks; otherwise the result is `count`, and the chunks must have that many.
    """
    sizes = struct.Struct(f"<{layers + 1}I")
    at, found = start + TABLE_OFFSET.size, 0
    while at + point + sizes.size <= end and (found < count or count == 0):
        stream.seek(at + point)
        points, *lengths = sizes.unpack(stream.read(sizes.size))
        if points == 0:
            break
        at, found = at + point + sizes.size + sum(lengths), found + points
        if at > end:
            raise FileFormatError(
                f"{path} is cut short: {found} points end at byte {at}, their data at {end}"
            )
    check_count(path, "points", count, 1, found)
    return count or found


# Fields that are kept even if all values are 0, and their names in the cloud.
RENAMED = {
    "intensity": "intensity",
    "return_number": "return_number",
    "number_of_returns": "number_of_returns",
    "gps_time": "time",
}
POSITION = ("X", "Y", "Z")
# Names with a fixed meaning in this module. An extra dimension with such a name is renamed.
OWN = ("xyz", "x", "y", "z", "rgb")
NO_POINTS = {"xyz": np.zeros((0, 3))}

SIGNATURE = b"LASF"
# The size of the shortest header (LAS 1.1), and the layout and offset of its counts.
HEADER_BYTES = 227
COUNTS = struct.Struct("<HII")
COUNTS_AT = 94
LEGACY_POINTS_AT = 107
RECORD_HEADER_BYTES = 54

# Points to decode at a time, so that arrays of a broken file stay near the size of its content.
PIECE = 200_000


def read_las(path: Path, options: ReadOptions) -> PointCloud:
    """Read a LAS or LAZ file as a cloud.

    Positions are scaled and shifted by the numbers in the header, and are in the file's coordinate
    system (some are in feet). The labels are the field ``classification`` with ASPRS codes, e.g. 2
    for ground and 6 for a building. If every point has code 0, "never classified", there are no
    labels. An extra dimension (a field that the producer defined) has the labels instead if its
    name is before ``classification`` in :data:`voxax.io.columns.LABELS`. Attributes are, if
    present, ``intensity`` (uint16), ``return_number``, ``number_of_returns``, ``time`` (float64),
    ``rgb`` (uint8 [N, 3]), and every extra dimension with its name.

    The other fields keep laspy's names, e.g. ``nir``, ``user_data``, ``point_source_id``,
    ``scan_angle`` or ``withheld`` (1 for a point that its producer has deleted). Such a field is
    left out if it is 0 at every point.

    If the number of points in the header is 0, all points in the file are read.
    """
    extension = path.suffix.lower()
    needed = ("laspy", "lazrs") if extension == ".laz" else ("laspy",)
    laspy = import_extra(f"reading {extension}", "io", *needed)
    # The file is opened here, so that it is closed even if laspy fails.
    with reading(path, extension.removeprefix(".").upper()), path.open("rb") as stream:
        try:
            return _read(laspy, laspy.LazBackend.Lazrs, path, stream, options.label_field)
        except BaseException as error:
            # LASzip reads some files and newer versions of LAZ that lazrs does not read.
            refused = type(error).__name__ == "LazrsError" and "not supported" in str(error)
            if not (is_panic(error) or refused):
                raise
            if not laspy.LazBackend.Laszip.is_available():
                raise FileFormatError(
                    f"lazrs cannot read {path} ({error}); LASzip may read it: pip install laszip"
                ) from error
        stream.seek(0)
        return _read(laspy, laspy.LazBackend.Laszip, path, stream, options.label_field)


def _read(
    laspy: ModuleType, backend: Any, path: Path, stream: BinaryIO, label_field: str | None
) -> PointCloud:
    legacy_points = _check_header(path, stream)
    # Extended records (coordinate systems, waveforms) are not needed; their sizes are unchecked.
    reader = laspy.open(stream, closefd=False, laz_backend=backend, read_evlrs=False)
    header = reader.header
    header.point_count = header.point_count or legacy_points
    if header.are_points_compressed:
        by_lazrs = backend == laspy.LazBackend.Lazrs
        header.point_count = checked_count(path, stream, header, by_lazrs=by_lazrs)
    else:
        end = path.stat().st_size
        if header.point_count == 0 and header.number_of_evlrs:
            end = min(end, header.start_of_first_evlr)
        record, left = header.point_format.size, end - header.offset_to_point_data
        header.point_count = header.point_count or max(0, left) // record
        check_count(path, "points", header.point_count, record, left)
    return cloud_from_columns(_columns(path, reader) or NO_POINTS, str(path), label_field)


def _check_header(path: Path, stream: BinaryIO) -> int:
    """Check sizes in the header that laspy does not check; return the 32-bit number of points.

    LAS 1.4 replaced this number in the header by one of 64 bits. If the file has no header,
    return 0, because laspy then raises the error.
    """
    head = stream.read(HEADER_BYTES)
    stream.seek(0)
    if len(head) < HEADER_BYTES or not head.startswith(SIGNATURE):
        return 0
    header_bytes, points_at, records = COUNTS.unpack_from(head, COUNTS_AT)
    size = path.stat().st_size
    if points_at > size:
        raise FileFormatError(
            f"{path} is cut short: its points begin at byte {points_at}, and it has {size}"
        )
    check_count(
        path, "variable length records", records, RECORD_HEADER_BYTES, points_at - header_bytes
    )
    return int.from_bytes(head[LEGACY_POINTS_AT : LEGACY_POINTS_AT + 4], "little")


def _columns(path: Path, reader: Any) -> dict[str, np.ndarray]:
    """Decode all points of laspy's `reader`; return an array with N rows per field, by name.

    A name is the one that the field has in the point cloud. Fields that are all 0 may be left out.
    """
    header = reader.header
    count, columns, start = header.point_count, dict[str, np.ndarray](), 0
    for piece in reader.chunk_iterator(PIECE):
        stop = start + len(piece)
        # The number of points in a compressed file may be wrong, so the arrays grow.
        rows = min(count, 2 * stop) if header.are_points_compressed else count
        for name, values, kept in _fields(piece, header.point_format):
            if name not in columns:
                if not (kept or values.any()):
                    continue
                columns[name] = np.zeros((rows, *values.shape[1:]), values.dtype)
            elif len(columns[name]) < stop:
                columns[name].resize((rows, *values.shape[1:]), refcheck=False)
            columns[name][start:stop] = values
        start = stop
    check_count(path, "points", count, 1, start)
    return columns


def _fields(piece: Any, layout: Any) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Yield ``(name, values, keep)`` for each field of `piece`, a block of points from laspy.

    `keep` is whether to keep the field if all its values are 0. `layout` is the point format.
    """
    extra = set(layout.extra_dimension_names)
    names = [str(name) for name in layout.dimension_names if name not in POSITION]
    yield "xyz", np.stack([piece.x, piece.y, piece.z], axis=1), True
    if set(COLOR) <= set(names):
        yield "rgb", np.stack([piece[name] for name in COLOR], axis=1), True
    for name in names:
        if name in extra:
            # An extra dimension is renamed if the format itself defines a field with its name.
            ours = f"extra_{name}" if name in (*RENAMED.values(), *OWN) else name
            yield ours, np.array(piece[name]), True
        elif name not in COLOR:
            yield RENAMED.get(name, name), np.array(piece[name]), name in RENAMED
