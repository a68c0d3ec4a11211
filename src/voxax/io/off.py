"""OFF, the Object File Format of Geomview: corners, and polygons between them.

Source: the page "OFF" of the manual of Geomview 1.9.5. Of its variants, COFF, NOFF, STOFF and 4OFF
are read, with the colors of corners and faces; a row may be broken over lines.
"""

import re
from itertools import chain, islice
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count
from voxax.io.point_cloud import PointCloud

# "OFF490 518 0", without a space, begins many files of ModelNet.
KEYWORD = re.compile(r"\s*(ST)?(C)?(N)?(4)?(?:OFF|off)(?![a-zA-Z])")
COMMENT = re.compile(r"#.*")
NORMAL = ("nx", "ny", "nz")
COLOR = ("red", "green", "blue")
NO_COLOR: list[str] = []


def load_off(
    path: Path, label_field: str | None = None
) -> tuple[PointCloud, list[np.ndarray], PointCloud | None]:
    """Read an OFF file.

    Returns:
        The corners with their colors and normals, the polygons (int64 [corners] each),
        and a cloud with the ``rgb`` of each polygon, or None where they have no color.

    Raises:
        FileFormatError: the file is not of text, or does not hold what its counts say.
    """
    text = COMMENT.sub("", path.read_bytes().decode("latin-1")).removeprefix("ï»¿")
    keyword = KEYWORD.match(text)
    if keyword is None:
        raise FileFormatError(f"{path} is not an OFF file of text: it does not begin with OFF")
    lines = [row for line in text[keyword.end() :].splitlines() if (row := line.split())]
    # Three counts (corners, faces, edges), in one line or in several.
    head: list[str] = []
    while lines and len(head) < 3 and (not head or len(lines[0]) == 1):
        head += lines.pop(0)
    lines = [head[3:], *lines] if head[3:] else lines
    vertices, faces = (int(count) for count in head[:2])
    size = path.stat().st_size
    check_count(path, "corners", vertices, 6, size, exact=False)
    check_count(path, "faces", faces, 2, size, exact=False)
    rows, polygons, colors = _by_line(lines, vertices, faces) or _by_number(
        list(chain.from_iterable(lines)), vertices, faces, _widths(keyword)
    )
    if len(rows) < vertices or len(polygons) < faces:
        raise FileFormatError(
            f"{path} is cut short: it says {vertices} corners and {faces} faces, "
            f"{len(rows)} and {len(polygons)} are there"
        )
    cloud = cloud_from_columns(_columns(rows, keyword), str(path), label_field)
    if not polygons or not all(len(color) in (3, 4) for color in colors):
        return cloud, polygons, None
    nowhere = dict.fromkeys("xyz", np.zeros(len(polygons)))
    named = dict(zip(COLOR, _numbers([color[:3] for color in colors]).T, strict=True))
    return cloud, polygons, cloud_from_columns(nowhere | named, str(path))


def _by_line(lines: list[list[str]], vertices: int, faces: int) -> tuple | None:
    """Split the usual file, with a line for each corner and face; None where it is another."""
    rows, listed = lines[:vertices], lines[vertices : vertices + faces]
    if len({len(row) for row in rows}) > 1 or (rows and len(rows[0]) < 3):
        return None
    sizes = [int(line[0]) if line[0].isdecimal() else len(line) for line in listed]
    if any(size >= len(line) for size, line in zip(sizes, listed, strict=True)):
        return None
    polygons = [
        np.array(line[1 : size + 1], np.int64) for size, line in zip(sizes, listed, strict=True)
    ]
    colors = [line[size + 1 :] for size, line in zip(sizes, listed, strict=True)]
    return rows, polygons, colors


def _by_number(words: list[str], vertices: int, faces: int, widths: list[int]) -> tuple:
    """Split a file whose rows go over several lines: only the order of the numbers counts.

    Colors of faces can't be told from the next face there; the first width fits where none does.
    """
    found: list[tuple] = []
    for width in widths:
        rest, polygons = iter(words[vertices * width :]), list[np.ndarray]()
        for word in islice(rest, faces):
            polygon = np.array(list(islice(rest, max(0, int(word)))), np.int64)
            if len(polygon) == int(word):
                polygons.append(polygon)
        rows = [words[at : at + width] for at in range(0, vertices * width, width)]
        found.append(([row for row in rows if len(row) == width], polygons, [NO_COLOR] * faces))
        if len(polygons) == faces and next(rest, None) is None:
            return found[-1]
    return found[0]


def _columns(rows: list[list[str]], keyword: re.Match[str]) -> dict[str, np.ndarray]:
    """Name the numbers of the corners: position, weight, normal, color, texture coordinates."""
    texture, _, normal, weight = map(bool, keyword.groups())
    if not rows:
        return dict.fromkeys("xyz", np.zeros(0))
    names = [*"xyz", *("w" * weight), *(NORMAL * normal)]
    colors = len(rows[0]) - len(names) - 2 * texture
    columns = {
        name: _numbers([row[column : column + 1] for row in rows])[:, 0].astype(np.float64)
        for column, name in enumerate(names)
    }
    if weight:
        w = columns.pop("w")
        columns |= {axis: columns[axis] / w for axis in "xyz"}
    if colors in (3, 4):
        rgb = _numbers([row[len(names) : len(names) + 3] for row in rows])
        columns |= dict(zip(COLOR, rgb.T, strict=True))
    return columns


def _numbers(rows: list[list[str]]) -> np.ndarray:
    """Return rows of words as numbers [R, k]: integers where all are, otherwise float64."""
    try:
        return np.array(rows, np.int64)
    except ValueError:
        return np.array(rows, np.float64)


def _widths(keyword: re.Match[str]) -> list[int]:
    """Return how many numbers a corner may have; colors are of 4, or against the manual 3."""
    texture, color, normal, weight = map(bool, keyword.groups())
    width = 3 + weight + 3 * normal + 2 * texture
    return [width + 4, width + 3] if color else [width]
