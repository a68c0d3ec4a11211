"""Feather and Parquet: tables with named columns, as Argoverse 2 stores its sweeps.

Source: the Arrow IPC and Parquet formats of the Apache Arrow project, as read by pyarrow.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import cloud_from_columns
from voxax.io.compressed import check_unpacked
from voxax.io.decoding import reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

FEATHER_1 = b"FEA1"


def read_table(path: Path, options: ReadOptions) -> PointCloud:
    """Read a ``.feather`` (version 2, which is an Arrow file) or a ``.parquet``.

    Columns of numbers are sorted as :func:`voxax.io.columns.cloud_from_columns` says; a column
    of lists of one length k is [N, k], times are integers, and a missing number is NaN. Columns
    of text, and whatever else holds no numbers, are left out.

    Raises:
        FileFormatError: the file is broken or cut short, of Feather version 1, or has no
            positions.
        MissingExtraError: pyarrow is not installed.
    """
    kind = path.suffix.lower().removeprefix(".")
    modules = ("pyarrow", "pyarrow.compute", "pyarrow.feather", "pyarrow.parquet")
    arrow = import_extra(f"reading .{kind}", "arrow", *modules)
    with reading(path, kind.upper()):
        try:
            table = _parquet(arrow, path) if kind == "parquet" else _feather(arrow, path)
            columns = {
                name: values
                for name, column in zip(table.column_names, table.columns, strict=True)
                if (values := _numbers(arrow, column)) is not None
            }
        except arrow.ArrowMemoryError as error:
            raise FileFormatError(
                f"{path} of {path.stat().st_size} bytes asks for more memory than there is: {error}"
            ) from error
        return cloud_from_columns(columns, str(path), options.label_field)


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
            # The library believes what such a file says of places in it, and ends the process.
            raise FileFormatError(
                f"{path} is Feather version 1, which is deprecated: write it as version 2 with "
                "pyarrow.feather.write_feather"
            )
    return arrow.feather.read_table(path, memory_map=True, use_threads=False)


def _numbers(arrow: ModuleType, column: Any) -> np.ndarray | None:
    types, kind = arrow.types, column.type
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = column.combine_chunks()
        inner.validate(full=True)  # where its lists begin and end is what the file says
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
