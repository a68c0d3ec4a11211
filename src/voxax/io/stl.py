"""STL: triangles without a table of corners, binary or in text.

Source: 3D Systems, "StereoLithography Interface Specification", 1989.
"""

import re
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count
from voxax.io.numbers import number_columns
from voxax.io.point_cloud import PointCloud

HEADER_BYTES = 80
TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
TEXT = b"solid"
VERTEX = re.compile(rb"^[ \t]*vertex[ \t]+([^\n]*)", re.MULTILINE | re.IGNORECASE)
# The words at the beginnings of lines that count something.
WORDS = re.compile(rb"^[ \t]*(solid|endsolid|facet|endfacet)\b", re.MULTILINE | re.IGNORECASE)


def load_stl(path: Path, label_field: str | None = None) -> tuple[PointCloud, np.ndarray]:
    """Read the triangles of all solids of an STL file.

    Returns:
        The corners, three for each triangle, and the triangles, int64 [T, 3].

    Raises:
        FileFormatError: it is broken or cut short.
    """
    corners = _binary(path)
    if corners is None:
        corners = _text(path)
    cloud = cloud_from_columns({"xyz": corners}, str(path), label_field)
    return cloud, np.arange(len(corners)).reshape(-1, 3)


def _binary(path: Path) -> np.ndarray | None:
    """Return the corners, float32 [3 T, 3], three for each triangle; None for a file of text."""
    start = HEADER_BYTES + 4
    with path.open("rb") as stream:
        head = stream.read(start)
        count = int.from_bytes(head[HEADER_BYTES:], "little")
        left = path.stat().st_size - start
        # Four characters of text are a number too large for any file; what stands behind
        # the last triangle is of no meaning.
        if TEXT in head.lower() and count * TRIANGLE.itemsize > left:
            return None
        check_count(path, "triangles", count, TRIANGLE.itemsize, left)
        return np.fromfile(stream, TRIANGLE, count)["corners"].reshape(-1, 3)


def _text(path: Path) -> np.ndarray:
    """Return the corners, float64 [3 T, 3], three for each triangle."""
    text = path.read_bytes()
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    words = [word.lower() for word in WORDS.findall(text)]
    solids, ends, facets, closed = (
        words.count(word) for word in (b"solid", b"endsolid", b"facet", b"endfacet")
    )
    lines = VERTEX.findall(text)
    if (solids, facets, 3 * facets) != (ends, closed, len(lines)):
        raise FileFormatError(
            f"{path} is broken or cut short: it begins {solids} solids and {facets} facets, ends "
            f"{ends} and {closed}, and has {len(lines)} corners, not {3 * facets}"
        )
    return np.stack(number_columns(path, b"\n".join(lines), [np.dtype(np.float64)] * 3), axis=1)
