"""OBJ: corners, and polygons between them, in lines of text.

Source: "Object Files (.obj)", appendix B1 of the manual of Wavefront's Advanced Visualizer.
"""

import codecs
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import cloud_from_columns
from voxax.io.numbers import number_columns
from voxax.io.point_cloud import PointCloud

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
CONTINUED = re.compile(rb"\\[ \t]*\n")
LINES = rb"^[ \t]*%s[ \t]+([^#\n]*)"
# "fo" is what "f" was called in version 2.11.
CORNER, NORMAL_LINE, POLYGON = (
    re.compile(LINES % word, re.MULTILINE) for word in (b"v", b"vn", b"fo?")
)
CORNER_OR_POLYGON = re.compile(rb"^[ \t]*([vf])o?[ \t]", re.MULTILINE)
# Parts of a surface that are no polygons, and a call of another file.
NOT_READ = re.compile(rb"^[ \t]*(surf|call|bzp|bsp|cdp)[ \t]", re.MULTILINE)
# Behind the corner of a polygon stand those of its texture and its normal.
OTHERS = re.compile(rb"/\S*")
POSITION = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
COLOR = ("red", "green", "blue")
# Columns of a corner by their number. A fourth weighs the corners of curves.
COLUMNS = {6: (*POSITION, *COLOR), 7: (*POSITION, *COLOR, "alpha")}


def load_obj(
    path: Path, label_field: str | None = None
) -> tuple[PointCloud, Sequence[np.ndarray] | np.ndarray]:
    """Read an OBJ file.

    Corners have colors where each of them has; points without polygons have normals where there
    are as many. Textures, materials, curves and the normals of polygons are not read.

    Returns:
        The corners, and the polygons: int64 [corners] each, or [P, corners] where all have as
        many.

    Raises:
        FileFormatError: a line holds something else than numbers, or a part of the surface is
            curved or in another file.
    """
    text = _text(path)
    if (other := NOT_READ.search(text)) is not None:
        raise FileFormatError(
            f"{path} has a line {other[1].decode()!r}: curved surfaces and parts in other files "
            "are not read. Export it as polygons"
        )
    corners, polygons = CORNER.findall(text), _polygons(text)
    columns, normals = _corners(path, corners), NORMAL_LINE.findall(text)
    if len(normals) == len(corners) and not len(polygons):
        columns |= _columns(path, normals, NORMAL)
    return cloud_from_columns(columns, str(path), label_field), polygons


def _text(path: Path) -> bytes:
    text = path.read_bytes()
    if text.startswith(UTF_16):
        text = text.decode("utf-16").encode()
    text = text.removeprefix(codecs.BOM_UTF8)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return CONTINUED.sub(b" ", text) if b"\\" in text else text


def _corners(path: Path, lines: list[bytes]) -> dict[str, np.ndarray]:
    widths = {len(line.split()) for line in lines}
    if len(widths) > 1:
        # Colors of some corners are those of none.
        lines = [b" ".join(line.split()[:3]) for line in lines]
        widths = {min(widths)}
    width = widths.pop() if widths else 3
    if width < 3:
        raise FileFormatError(f"{path} is broken: it has a corner of {width} numbers, not 3")
    names = COLUMNS.get(width, (*POSITION, *("_" * (width - 3))))
    return _columns(path, lines, names)


def _columns(path: Path, lines: list[bytes], names: Sequence[str]) -> dict[str, np.ndarray]:
    kinds = [np.dtype(np.float64)] * len(names)
    columns = number_columns(path, b"\n".join(lines), kinds)
    named = zip(names, columns, strict=True)
    return {name: values for name, values in named if name != "_"}


def _polygons(text: bytes) -> Sequence[np.ndarray] | np.ndarray:
    lines = POLYGON.findall(text)
    if not lines:
        return np.zeros((0, 3), np.int64)
    joined = b"\n".join(lines)
    if b"/" in joined:
        joined = OTHERS.sub(b"", joined)
        lines = joined.split(b"\n")
    sizes = np.array([len(line.split()) for line in lines], np.int64)
    with warnings.catch_warnings():
        # Older versions of NumPy only warn of what is no number.
        warnings.simplefilter("error", DeprecationWarning)
        corners = np.fromstring(joined, np.int64, sep=" ")
    if b"-" in joined:
        # Counted back from the last corner above the polygon.
        kinds = np.array(CORNER_OR_POLYGON.findall(text))
        above = np.cumsum(kinds == b"v")[kinds == b"f"]
        corners = np.where(corners < 0, np.repeat(above, sizes) + corners, corners - 1)
    else:
        corners -= 1
    if len(set(sizes.tolist())) == 1:
        return corners.reshape(len(lines), -1)
    return np.split(corners, np.cumsum(sizes)[:-1])
