"""LAS and its compressed form LAZ, the exchange formats of airborne and mobile scanning.

Source: ASPRS LAS Specification 1.4, as read by laspy; LAZ is unpacked by lazrs.
"""

from pathlib import Path
from typing import Any

import numpy as np

from voxax.errors import import_extra
from voxax.io.decoding import check_count, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud, to_uint8

# Dimensions of the file that go into the cloud, and their names there.
DIMENSIONS = {
    "intensity": "intensity",
    "return_number": "return_number",
    "number_of_returns": "number_of_returns",
    "gps_time": "time",
}
COLORS = ("red", "green", "blue")


def read_las(path: Path, options: ReadOptions) -> PointCloud:
    """Read a LAS or LAZ file.

    Positions are scaled and shifted as the header says, in the file's coordinate
    system (some are in feet). The classification becomes the labels: the ASPRS codes,
    e.g. 2 for ground and 6 for a building. Where every point has code 0, "never
    classified", there are no labels. Also ``intensity`` (uint16), ``return_number``,
    ``number_of_returns``, ``time`` (float64) and ``rgb`` (uint8 [N, 3]) where present.

    Raises:
        FileFormatError: the file is broken or cut short.
        MissingExtraError: laspy or, for ``.laz``, lazrs is not installed.
    """
    extension = path.suffix.lower()
    needed = ("laspy", "lazrs") if extension == ".laz" else ("laspy",)
    laspy = import_extra(f"reading {extension}", "io", *needed)
    with reading(path, extension.removeprefix(".").upper()):
        # Opened here, so that the file is closed whatever laspy makes of it. One thread:
        # on a broken file the parallel decoder can ask for so much memory that the process
        # ends, and it is hardly faster.
        backend = laspy.LazBackend.Lazrs
        with path.open("rb") as stream:
            reader = laspy.open(stream, closefd=False, laz_backend=backend)
            _check_length(path, reader.header)
            data = reader.read()
        names = set(data.point_format.dimension_names)
        attributes = {
            ours: np.array(data[theirs]) for theirs, ours in DIMENSIONS.items() if theirs in names
        }
        if names.issuperset(COLORS):
            attributes["rgb"] = to_uint8(np.stack([np.array(data[c]) for c in COLORS], axis=1))
        classes = np.array(data.classification)
        return PointCloud(
            np.stack([np.array(data.x), np.array(data.y), np.array(data.z)], axis=1),
            attributes,
            classes if classes.any() else None,
            str(path),
        )


def _check_length(path: Path, header: Any) -> None:
    """Compare the header with the file before memory is allocated for the points."""
    if header.are_points_compressed:
        return
    left = path.stat().st_size - int(header.offset_to_point_data)
    check_count(path, "points", int(header.point_count), int(header.point_format.size), left)
