"""What a LAZ file claims of its compressed points, checked before they are decoded.

A decoder takes memory for as many chunks, and for layers of as many bytes, as the file
says; where that fails, a decoder in Rust ends the process.

Sources: Martin Isenburg, "LASzip: lossless compression of LiDAR data", 2013; for the
layers of the point formats 6 to 10, the file layout of LASzip 3.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from voxax.errors import FileFormatError, import_extra
from voxax.io.decoding import check_count

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
    """Return the number of points in a LAZ file after checking its claims.

    The stream is left at the points.

    Args:
        path: the file, for messages.
        stream: the file.
        header: laspy's, with the ``point_count`` that the file claims.
        by_lazrs: it will decode the file; otherwise LASzip, which finds the chunks itself.

    Raises:
        FileFormatError: the file cannot hold the points, chunks or layers that it claims.
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
