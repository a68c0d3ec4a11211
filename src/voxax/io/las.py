"""LAS and its compressed form LAZ, the exchange formats of airborne and mobile scanning.

laspy reads the points, and lazrs or LASzip unpacks them. What a LAZ file claims of its compressed
points is checked before: a decoder takes memory for as many chunks, and for layers of as many
bytes, as the file says; where that fails, a decoder in Rust ends the process.

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
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count, is_panic, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

RECORD = struct.Struct("<H30xH")  # compressor, number of items
ITEM = struct.Struct("<HHH")  # kind, bytes, version
CHUNK_TABLE = struct.Struct("<4xI")  # number of chunks
TABLE_OFFSET = struct.Struct("<q")

# Compressors that divide the points into chunks; of these, the one with layers.
CHUNKED = (2, 3)
LAYERED = 3
BYTE_ITEM = 14
# Layers of one item by its kind; each extra byte is a layer of its own.
LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}

# Four fields of a point change independently, and the arithmetic coder spends at least
# 2e-3 bits on the most certain of symbols: one byte holds 1,000 points. Files of equal
# points have 150 in each byte, since every chunk of 50,000 starts anew.
POINTS_PER_BYTE = 2000


def checked_count(path: Path, stream: BinaryIO, header: Any, *, by_lazrs: bool = True) -> int:
    """Return the number of points in a LAZ file after checking its claims; leave the stream there.

    Unless `by_lazrs`, LASzip will decode the file, which finds the chunks itself.
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
    # Where this fails, the decoder starts at another place, and reads lengths that are unchecked.
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
    """Return where the table of chunks lies; a writer that cannot go back says so at the end."""
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
    """Walk over the chunks: each says how many points it has, and how long its layers are."""
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


# Fields that are always kept, and their names in the cloud.
RENAMED = {
    "intensity": "intensity",
    "return_number": "return_number",
    "number_of_returns": "number_of_returns",
    "gps_time": "time",
}
POSITION = ("X", "Y", "Z")
COLOR = ("red", "green", "blue")
# Names of columns that mean something else here than in an extra dimension.
OWN = ("xyz", "x", "y", "z", "rgb")
NO_POINTS = {"xyz": np.zeros((0, 3))}

SIGNATURE = b"LASF"
# The header of LAS 1.1, the shortest one, and where it says how many records follow.
HEADER_BYTES = 227
COUNTS = struct.Struct("<HII")
COUNTS_AT = 94
LEGACY_POINTS_AT = 107
RECORD_HEADER_BYTES = 54

# Points decoded at a time: what a broken file can take is bounded by what it holds.
PIECE = 200_000


def read_las(path: Path, options: ReadOptions) -> PointCloud:
    """Read a LAS or LAZ file.

    Positions are scaled and shifted as the header says, in the file's coordinate
    system (some are in feet). The classification becomes the labels: the ASPRS codes,
    e.g. 2 for ground and 6 for a building. Where every point has code 0, "never
    classified", there are no labels. An extra dimension may hold labels that come before
    it (:data:`voxax.io.columns.LABELS`). Also ``intensity`` (uint16), ``return_number``,
    ``number_of_returns``, ``time`` (float64) and ``rgb`` (uint8 [N, 3]) where present,
    and every extra dimension under its own name.

    The other fields keep laspy's names, e.g. ``nir``, ``user_data``,
    ``point_source_id``, ``scan_angle`` or ``withheld`` (1 for a point that its producer
    has deleted); a field that is 0 at every point is left out.

    Where the header says 0 points, those that the file holds are read.
    """
    extension = path.suffix.lower()
    needed = ("laspy", "lazrs") if extension == ".laz" else ("laspy",)
    laspy = import_extra(f"reading {extension}", "io", *needed)
    # Opened here, so that the file is closed whatever laspy makes of it.
    with reading(path, extension.removeprefix(".").upper()), path.open("rb") as stream:
        try:
            return _read(laspy, laspy.LazBackend.Lazrs, path, stream, options.label_field)
        except BaseException as error:
            # LASzip itself reads some files on which lazrs gives up, and newer ones than it knows.
            if not (is_panic(error) or _is_unsupported(error)):
                raise
            if not laspy.LazBackend.Laszip.is_available():
                raise FileFormatError(
                    f"lazrs cannot read {path} ({error}); LASzip may read it: pip install laszip"
                ) from error
        stream.seek(0)
        return _read(laspy, laspy.LazBackend.Laszip, path, stream, options.label_field)


def _is_unsupported(error: BaseException) -> bool:
    """Return whether lazrs knows what is in the file, and does not read this version of it."""
    return type(error).__name__ == "LazrsError" and "not supported" in str(error)


def _read(
    laspy: ModuleType, backend: Any, path: Path, stream: BinaryIO, label_field: str | None
) -> PointCloud:
    legacy_points = _check_header(path, stream)
    # Extended records (coordinate systems, waveforms) are not needed, and their sizes are claims.
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
    return cloud_from_columns(_columns(reader) or NO_POINTS, str(path), label_field)


def _check_header(path: Path, stream: BinaryIO) -> int:
    """Check what laspy would believe, and return the number of points as LAS 1.0 states it.

    What is no header at all is left to laspy.
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


def _columns(reader: Any) -> dict[str, np.ndarray]:
    """Decode all points into one array per field, with the names of the cloud."""
    header = reader.header
    count, columns, start = header.point_count, dict[str, np.ndarray](), 0
    for piece in reader.chunk_iterator(PIECE):
        stop = start + len(piece)
        # The count of a compressed file is known to be true only at its end: the arrays grow.
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
    if start < count:
        raise FileFormatError(f"its header says {count} points, {start} are there")
    return columns


def _fields(piece: Any, layout: Any) -> Iterator[tuple[str, np.ndarray, bool]]:
    """Give each field of some points: its name, its values, and whether it stays if all are 0."""
    extra = set(layout.extra_dimension_names)
    names = [str(name) for name in layout.dimension_names if name not in POSITION]
    yield "xyz", np.stack([piece.x, piece.y, piece.z], axis=1), True
    if set(COLOR) <= set(names):
        yield "rgb", np.stack([piece[name] for name in COLOR], axis=1), True
    for name in names:
        if name in extra:
            # Not mistaken for a field that the format itself defines.
            ours = f"extra_{name}" if name in (*RENAMED.values(), *OWN) else name
            yield ours, np.array(piece[name]), True
        elif name not in COLOR:
            yield RENAMED.get(name, name), np.array(piece[name]), name in RENAMED
