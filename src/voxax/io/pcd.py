"""PCD, the format of the Point Cloud Library.

Source: "The PCD (Point Cloud Data) file format", pointclouds.org, version 0.7, as read
by pypcd4.
"""

from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.decoding import reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud, cloud_from_columns

PACKED_COLORS = ("rgb", "rgba")
# pypcd4 gives this name to the columns that the file calls "_", which are padding.
PADDING_PREFIX = "#$"


def read_pcd(path: Path, options: ReadOptions) -> PointCloud:
    """Read a PCD file: ascii, binary or binary_compressed.

    Packed colors are unpacked into ``rgb`` (uint8 [N, 3]); a column with a count of k
    becomes an attribute [N, k]. Every row of the file is here, also those of an
    organized cloud without a measurement (NaN): :func:`voxax.io.read` drops them.

    Raises:
        FileFormatError: the file is broken or cut short.
        MissingExtraError: pypcd4 is not installed.
    """
    pypcd4 = import_extra("reading .pcd", "io", "pypcd4")
    with reading(path, "PCD"):
        content = pypcd4.PointCloud.from_path(path)
        # One row of ascii comes back without its axis.
        rows = np.atleast_1d(content.pc_data)
        if len(rows) != content.metadata.points:
            raise FileFormatError(
                f"{path} is cut short: its header says {content.metadata.points} points, "
                f"{len(rows)} are there"
            )
        columns: dict[str, np.ndarray] = {}
        for name, count in zip(content.metadata.fields, content.metadata.count, strict=True):
            if name.startswith(PADDING_PREFIX):
                continue
            if count == 1:
                columns[name] = rows[name]
            else:
                parts = [rows[f"{name}__{part:04d}"] for part in range(count)]
                columns[name] = np.stack(parts, axis=1)
        for name in PACKED_COLORS:
            if name in columns and columns[name].dtype.itemsize == 4:
                columns |= _unpacked(columns.pop(name))
        return cloud_from_columns(columns, str(path))


def _unpacked(packed: np.ndarray) -> dict[str, np.ndarray]:
    """Return the bytes of 0xAARRGGBB, which PCL stores in the bits of a float32."""
    bits = np.ascontiguousarray(packed).view(np.uint32)
    shifts = {"red": 16, "green": 8, "blue": 0}
    return {name: ((bits >> shift) & 0xFF).astype(np.uint8) for name, shift in shifts.items()}
