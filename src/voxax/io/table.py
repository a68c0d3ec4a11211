"""Read Feather and Parquet: tables with named columns, as Argoverse 2 stores its sweeps.

Source: the Arrow IPC and Parquet formats of the Apache Arrow project, as read by pyarrow.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import POSITION, cloud_from_columns, find_name
from voxax.io.decoding import check_unpacked, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

FEATHER_1 = b"FEA1"
# The last bytes of an Arrow file: the length of the footer, and the name of the format.
ARROW_END = b"....ARROW1"
# The first four bytes of a message since version 0.15, and the number of one kind of message.
CONTINUES, DICTIONARY_BATCH = 0xFFFFFFFF, 2


def read_table(path: Path, options: ReadOptions) -> PointCloud:
    """Read a point cloud from a ``.feather`` (version 2, an Arrow file) or a ``.parquet``.

    :func:`voxax.io.columns.cloud_from_columns` converts columns of numbers. A column of lists that
    all have length k is [N, k], times become integers, and a missing number is NaN. Columns of
    text, and other columns without numbers, are left out.
    """
    with _opened(path) as (arrow, table):
        columns = {
            name: values
            for name, column in zip(table.column_names, table.columns, strict=True)
            if (values := _numbers(arrow, column)) is not None
        }
        for axis in POSITION:
            name = find_name(table.column_names, axis)
            if name is not None and name not in columns:
                raise _no_numbers(path, table, name)
        return cloud_from_columns(columns, str(path), options.label_field)


def read_table_columns(
    path: Path, numbers: Sequence[str], texts: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Read the named columns [N] of a ``.feather`` or a ``.parquet``; return them by name.

    `numbers` are the names of columns with numbers. `texts` are the names of columns with text,
    which become object arrays of ``str``.
    """
    with _opened(path) as (arrow, table):
        missing = [name for name in (*numbers, *texts) if name not in table.column_names]
        if missing:
            raise FileFormatError(
                f"{path} has no column {', '.join(missing)}; it has {', '.join(table.column_names)}"
            )
        found: dict[str, np.ndarray] = {}
        for name in numbers:
            values = _numbers(arrow, table.column(name))
            if values is None or values.ndim != 1:
                raise _no_numbers(path, table, name)
            found[name] = values
        for name in texts:
            column = table.column(name)
            kind = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
            if not arrow.types.is_string(kind) and not arrow.types.is_large_string(kind):
                raise FileFormatError(f"{path}: column {name} holds {column.type}, no text")
            found[name] = np.array(column.to_pylist(), dtype=object)
        return found


def _no_numbers(path: Path, table: Any, name: str) -> FileFormatError:
    return FileFormatError(f"{path}: column {name} holds {table.column(name).type}, no numbers")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ModuleType, Any]]:
    """Open a table file: yield pyarrow and the table; errors about its content name the file."""
    kind = path.suffix.lower().removeprefix(".")
    modules = ("pyarrow", "pyarrow.compute", "pyarrow.feather", "pyarrow.parquet")
    arrow = import_extra(f"reading .{kind}", "arrow", *modules)
    with reading(path, kind.upper()):
        try:
            yield arrow, _parquet(arrow, path) if kind == "parquet" else _feather(arrow, path)
        except arrow.ArrowMemoryError as error:
            raise FileFormatError(
                f"{path} of {path.stat().st_size} bytes asks for more memory than there is: {error}"
            ) from error


def _parquet(arrow: ModuleType, path: Path) -> Any:
    with arrow.parquet.ParquetFile(path, memory_map=True) as file:
        about = file.metadata
        check_unpacked(path, about.num_rows)
        groups = [about.row_group(group) for group in range(about.num_row_groups)]
        check_unpacked(path, sum(group.total_byte_size for group in groups))
        return file.read(use_threads=False)


def _feather(arrow: ModuleType, path: Path) -> Any:
    with path.open("rb") as stream:
        if stream.read(len(FEATHER_1)) == FEATHER_1:
            # The library does not check offsets in such a file, and wrong ones end the process.
            raise FileFormatError(
                f"{path} is Feather version 1, which is deprecated: write it as version 2 with "
                "pyarrow.feather.write_feather"
            )
    with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
        check_unpacked(path, _unpacked_bytes(content))
    return arrow.feather.read_table(path, memory_map=True, use_threads=False)


def _unpacked_bytes(content: mmap) -> int:
    """Return the total unpacked size in bytes that an Arrow file states for compressed buffers.

    pyarrow allocates this memory before it unpacks a buffer. Source: "IPC File Format" and
    "Compression" of the Arrow columnar format, whose tables are FlatBuffers.
    """

    def number(kind: str, place: int) -> int:
        return struct.unpack_from(f"<{kind}", content, place)[0]

    def field(table: int, slot: int) -> int | None:
        """Return the byte offset of a field of a FlatBuffers table; None if it is not stored.

        `table` is the byte offset of the table, and `slot` is the number of the field.
        """
        offsets = table - number("i", table)
        if 4 + 2 * slot >= number("H", offsets):
            return None
        return table + found if (found := number("H", offsets + 4 + 2 * slot)) else None

    def inner(table: int, slot: int) -> int | None:
        """Return the byte offset of what a field of a table refers to: a table or a list.

        The arguments are those of ``field``. The result is None if the field is not stored.
        """
        place = field(table, slot)
        return None if place is None else place + number("I", place)

    def rows(place: int | None, kind: str) -> Iterator[tuple[int, ...]]:
        for row in range(0 if place is None else number("I", place)):
            assert place is not None
            yield struct.unpack_from(kind, content, place + 4 + row * struct.calcsize(kind))

    def batch(message: int) -> int | None:
        """Return the byte offset of the record batch in a message; None if it has no batch.

        `message` is the byte offset of the message.
        """
        kind, header = field(message, 1), inner(message, 2)
        if kind is None or header is None:
            return None
        return inner(header, 1) if content[kind] == DICTIONARY_BATCH else header

    end = len(content) - len(ARROW_END)
    footer = end - number("i", end)
    footer += number("I", footer)
    total = 0
    for slot in (2, 3):  # dictionaries and batches
        for start, header_bytes, _ in rows(inner(footer, slot), "<qi4xq"):
            head = start + (8 if number("I", start) == CONTINUES else 4)
            own = batch(head + number("I", head))
            if own is None or field(own, 3) is None:  # not compressed, so it is memory-mapped
                continue
            for offset, length in rows(inner(own, 2), "<qq"):
                if length >= 8:  # a size of -1 means not compressed
                    total += max(0, number("q", start + header_bytes + offset))
    return total


def _numbers(arrow: ModuleType, column: Any) -> np.ndarray | None:
    types, kind = arrow.types, column.type
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = column.combine_chunks()
        inner.validate(full=True)  # the file may have wrong offsets of lists
        values = _numbers(arrow, inner.flatten())
        if values is None or values.ndim != 1 or len(column) == 0 or len(values) % len(column):
            return None
        if not types.is_fixed_size_list(kind):
            lengths = arrow.compute.list_value_length(inner)
            if arrow.compute.count_distinct(lengths, mode="all").as_py() != 1:
                return None
        return values.reshape(len(column), -1)
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind):
        return _numbers(arrow, column.cast(arrow.int64()))
    if types.is_decimal(kind):
        return _numbers(arrow, column.cast(arrow.float64()))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return column.to_numpy() if hasattr(column, "num_chunks") else column.to_numpy(False)
    return None
