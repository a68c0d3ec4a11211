"""OBJ: corners, and polygons between them, in lines of text.

Source: "Object Files (.obj)", appendix B1 of the manual of Wavefront's Advanced Visualizer.
"""

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import cloud_from_columns
from voxax.io.numbers import number_columns, number_words
from voxax.io.point_cloud import PointCloud

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
CONTINUED = re.compile(rb"\\[ \t]*\n")
LINE = re.compile(rb"^[ \t]*(vn?|f)[ \t]+([^#\n]*)", re.MULTILINE)
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
        FileFormatError: a line holds something else than numbers.
    """
    corners, normals, faces, known = [], [], [], []
    for kind, words in LINE.findall(_text(path)):
        if kind == b"v":
            corners.append(words)
        elif kind == b"vn":
            normals.append(words)
        else:
            faces.append(words)
            known.append(len(corners))
    columns = _corners(path, corners)
    if normals and not faces and len(normals) == len(corners):
        columns |= _columns(path, normals, NORMAL)
    polygons = _polygons(path, faces, np.array(known, np.int64))
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


def _polygons(
    path: Path, lines: list[bytes], known: np.ndarray
) -> Sequence[np.ndarray] | np.ndarray:
    """Return the polygons, whose corners are counted from 1, or back from the last one `known`."""
    lines = OTHERS.sub(b"", b"\n".join(lines)).split(b"\n") if lines else []
    sizes = np.array([len(line.split()) for line in lines], np.int64)
    numbers = number_words(path, b" ".join(lines)).astype(np.int64)
    numbers = np.where(numbers < 0, np.repeat(known, sizes) + numbers, numbers - 1)
    if len(set(sizes.tolist())) <= 1:
        return numbers.reshape(len(lines), -1) if lines else np.zeros((0, 3), np.int64)
    return np.split(numbers, np.cumsum(sizes)[:-1])
