"""Read PCD files, the format of the Point Cloud Library.

Source: "The PCD (Point Cloud Data) file format", pointclouds.org, versions 0.5 to 0.7, and other
variants that ``pcl::PCDReader`` accepts.
"""

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import SKIPPED, cloud_from_columns, free_name
from voxax.io.decoding import check_columns, check_count, reading
from voxax.io.numbers import number_columns
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud

# Largest header. A usual header has a dozen lines. A file without a DATA line in it is no PCD file.
_HEADER_BYTES = 1 << 20
_KINDS = {"F": "f", "I": "i", "U": "u"}
_SIZES = {"F": (2, 4, 8), "I": (1, 2, 4, 8), "U": (1, 2, 4, 8)}
# Largest ratio of unpacked to packed bytes: LZF unpacks three bytes to at most 264.
_LZF_RATIO = 88


def read_pcd(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a PCD file as a cloud; its data may be ascii, binary or binary_compressed.

    :func:`voxax.io.columns.cloud_from_columns` converts the fields. A field with a count of k is a
    column [N, k], and padding (``_``) is left out. The result has every row of the file, even rows
    without a measurement (NaN), which :func:`voxax.io.read` drops. In an ascii file, an integer
    field with a NaN becomes float64.
    """
    with reading(path, "PCD"), path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
        found = re.search(rb"^[ \t]*DATA[ \t]+(\w+)[^\n]*(?:\n|$)", header, re.M | re.I)
        if found is None:
            raise FileFormatError(f"{path} has no line DATA, which ends the header of a PCD file")
        layout = _layout(path, header[: found.start()])
        stream.seek(found.end())
        available = path.stat().st_size - found.end()
        kind = found[1].lower()
        if kind == b"ascii":
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
                columns = _ascii(path, layout, text, found.end())
        elif kind == b"binary":
            columns = _binary(path, layout, found.end(), available)
        elif kind == b"binary_compressed":
            columns = _compressed(path, layout, stream.read())
        else:
            raise FileFormatError(
                f"{path} has DATA {kind.decode()!r}; known are ascii, binary and binary_compressed"
            )
        return cloud_from_columns(columns, str(path), options.label_field)


@dataclass(frozen=True)
class _Field:
    name: str
    dtype: np.dtype
    count: int

    @property
    def size(self) -> int:
        """The number of bytes of the field in one point."""
        return self.dtype.itemsize * self.count


@dataclass(frozen=True)
class _Layout:
    fields: tuple[_Field, ...]  # without fields whose count is 0
    points: int | None  # None if the header does not have it

    def columns(self, parts: list[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns [N] or [N, count] by the field's name, without padding.

        `parts` has an array [N, count] for each field, in the order of the fields.
        """
        columns: dict[str, np.ndarray] = {}
        for field, values in zip(self.fields, parts, strict=True):
            if field.name != SKIPPED:
                name = free_name(field.name, columns)
                columns[name] = values[:, 0] if field.count == 1 else values
        return columns


def _layout(path: Path, header: bytes) -> _Layout:
    lines = {}
    # Comments may be in any encoding.
    for line in header.decode("latin-1").splitlines():
        words = line.partition("#")[0].split()
        if words:
            lines[words[0].upper()] = words[1:]
    names = lines.get("FIELDS", lines.get("COLUMNS", []))
    if not names:
        raise FileFormatError(f"{path} names no fields: its header has no line FIELDS or COLUMNS")

    check_columns(path, len(names))

    def values(key: str, default: str) -> list[str]:
        given = lines.get(key, [default] * len(names))
        if len(given) != len(names):
            raise FileFormatError(
                f"{path} is broken: FIELDS names {len(names)} fields, {key} has {len(given)} values"
            )
        return given

    fields = []
    for name, size, kind, count in zip(
        names, values("SIZE", "4"), values("TYPE", "F"), values("COUNT", "1"), strict=True
    ):
        number, bytes_of_one = _whole(path, "COUNT", count), _whole(path, "SIZE", size)
        if name == SKIPPED:
            # In an ascii file, padding has as many values as its count, of any size.
            fields.append(_Field(name, np.dtype(f"V{bytes_of_one}"), number))
        elif bytes_of_one not in _SIZES.get(kind.upper(), ()):
            raise FileFormatError(
                f"{path} is broken: its field {name} has TYPE {kind} and SIZE {size}; types are "
                "F of 2, 4 or 8 bytes, I and U of 1, 2, 4 or 8"
            )
        else:
            dtype = np.dtype(f"<{_KINDS[kind.upper()]}{bytes_of_one}")
            fields.append(_Field(name, dtype, number))
    points = None
    if "POINTS" in lines:
        points = _whole(path, "POINTS", *lines["POINTS"][:1])
    elif "WIDTH" in lines:
        points = _whole(path, "WIDTH", *lines["WIDTH"][:1])
        points *= _whole(path, "HEIGHT", *lines.get("HEIGHT", ["1"])[:1])
    return _Layout(tuple(field for field in fields if field.size), points)


def _whole(path: Path, key: str, text: str = "") -> int:
    if not text.isdecimal():
        raise FileFormatError(f"{path} is broken: {key} is {text!r}, not a whole number")
    return int(text)


def _ascii(path: Path, layout: _Layout, text: mmap.mmap, begin: int) -> dict[str, np.ndarray]:
    width = sum(field.count for field in layout.fields)
    if layout.points is not None:
        # Each number takes a digit and a separator; the last number needs no separator.
        check_count(path, "points", layout.points, max(1, 2 * width), len(text) + 1 - begin)
    else:
        check_count(path, "numbers in a row", width, 2, len(text) + 1 - begin)
    # Padding may be any number. It is left out later.
    kinds = [
        np.dtype(np.float64) if field.name == SKIPPED else field.dtype
        for field in layout.fields
        for _ in range(field.count)
    ]
    numbers = number_columns(path, text, kinds, begin)
    rows = len(numbers[0]) if numbers else 0
    if layout.points is not None and layout.points != rows:
        state = "cut short" if rows < layout.points else "broken"
        raise FileFormatError(
            f"{path} is {state}: its header says {layout.points} points, {rows} are there"
        )
    parts, first = [], 0
    for field in layout.fields:
        own = numbers[first : first + field.count]
        parts.append(own[0][:, None] if field.count == 1 else np.stack(own, axis=1))
        first += field.count
    return layout.columns(parts)


def _binary(path: Path, layout: _Layout, begin: int, available: int) -> dict[str, np.ndarray]:
    # Fields are named by their index, because names may repeat.
    record = np.dtype([(f"f{i}", f.dtype, (f.count,)) for i, f in enumerate(layout.fields)])
    there = available // record.itemsize
    if layout.points is not None:
        check_count(path, "points", layout.points, record.itemsize, available)
        there = layout.points
    # Rows are memory-mapped. Columns that are kept are copied later, and padding is never read.
    if there:
        rows = np.memmap(path, record, "r", begin, (there,))
    else:
        rows = np.zeros(0, record)
    return layout.columns([rows[name] for name in record.names or ()])


def _compressed(path: Path, layout: _Layout, content: bytes) -> dict[str, np.ndarray]:
    if len(content) < 8:
        raise FileFormatError(f"{path} is cut short: {len(content)} bytes follow its header")
    packed, size = (int(n) for n in np.frombuffer(content, "<u4", 2))
    check_count(path, "compressed bytes", packed, 1, len(content) - 8)
    fields = layout.fields
    point = sum(field.size for field in fields)
    if layout.points is None or size != layout.points * point:
        # The Point Cloud Library leaves out padding when it compresses.
        fields = tuple(field for field in fields if field.name != SKIPPED)
        point = sum(field.size for field in fields)
    points = size // max(point, 1) if layout.points is None else layout.points
    if size != points * point:
        raise FileFormatError(
            f"{path} is broken: its header says {points} points of {point} bytes, and its data "
            f"unpack to {size}"
        )
    data = content[8 : 8 + packed]
    # Data are stored unpacked if packing would have made them longer.
    if packed != size:
        check_count(path, "unpacked bytes", size, 1, _LZF_RATIO * packed)
        lzf = import_extra("reading .pcd of DATA binary_compressed", "io", "lzf")
        data = lzf.decompress(data, size)
        if data is None or len(data) != size:
            raise FileFormatError(
                f"{path} is broken: its compressed data do not unpack to {size} bytes"
            )
    parts, begin = [], 0
    for field in fields:
        # The data are ordered by field, then by point.
        flat = np.frombuffer(data, field.dtype, points * field.count, begin)
        parts.append(flat.reshape(points, field.count))
        begin += points * field.size
    return _Layout(fields, points).columns(parts)
