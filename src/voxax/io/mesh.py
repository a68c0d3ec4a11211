"""Read meshes (OBJ, OFF, STL, GLB) as point clouds, by sampling points evenly from the surface.

GLB is parsed in :mod:`voxax.io.glb`. PLY, which stores points or meshes, is in :mod:`voxax.io.ply`.
trimesh cannot replace these readers: it returns a part of a truncated text STL or OFF without an
error, and it refuses or misreads variants of OBJ and OFF.

Sources: "Object Files (.obj)", appendix B1 of the manual of Wavefront's Advanced Visualizer; the
page "OFF" of the manual of Geomview 1.9.5 (its variants COFF, NOFF, STOFF and 4OFF are read too);
3D Systems, "StereoLithography Interface Specification", 1989.
"""

import codecs
import re
import warnings
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.columns import COLOR, cloud_from_columns
from voxax.io.decoding import check_count, reading
from voxax.io.glb import load_glb
from voxax.io.numbers import number_columns
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud
from voxax.io.surface import fan_owners, fan_triangles, sample_surface

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
CONTINUED = re.compile(rb"\\[ \t]*\n")
LINES = rb"^[ \t]*%s[ \t]+([^#\n]*)"
# In version 2.11 of the format, "f" was called "fo".
CORNER, NORMAL_LINE, POLYGON = (
    re.compile(LINES % word, re.MULTILINE) for word in (b"v", b"vn", b"fo?")
)
CORNER_OR_POLYGON = re.compile(rb"^[ \t]*([vf])o?[ \t]", re.MULTILINE)
# Lines that begin a curved part of a surface, or include another file.
NOT_READ = re.compile(rb"^[ \t]*(surf|call|bzp|bsp|cdp)[ \t]", re.MULTILINE)
# The indices of texture and normal, which follow the index of a polygon's corner.
OTHERS = re.compile(rb"/\S*")
NORMAL = ("nx", "ny", "nz")
# Names of a corner's columns, by the number of columns. Others, such as a weight, are not read.
COLUMNS = {6: (*"xyz", *COLOR), 7: (*"xyz", *COLOR, "alpha")}


# The corners, the triangles (int64 [T, 3], rows of corners), and the triangles' columns or None.
Mesh = tuple[PointCloud, np.ndarray, PointCloud | None]


def _obj(path: Path, label_field: str | None) -> Mesh:
    """Read the corners and triangles of an OBJ file; curved surfaces raise FileFormatError.

    Colors are read if every corner has a color. Normals are read only from a file without polygons
    and with a normal for each point. Textures, materials and the normals of polygons are ignored.
    """
    text = _text(path)
    text = CONTINUED.sub(b" ", text) if b"\\" in text else text
    if (other := NOT_READ.search(text)) is not None:
        raise FileFormatError(
            f"{path} has a line {other[1].decode()!r}: curved surfaces and parts in other files "
            "are not read. Export it as polygons"
        )
    corners, polygons = CORNER.findall(text), _obj_polygons(text)
    columns, normals = _obj_corners(path, corners), NORMAL_LINE.findall(text)
    if len(normals) == len(corners) and not len(polygons):
        columns |= _number_lines(path, normals, NORMAL)
    return cloud_from_columns(columns, str(path), label_field), fan_triangles(polygons), None


def _text(path: Path) -> bytes:
    r"""Return the content of a text file as UTF-8 bytes, with ``\n`` at the end of each line."""
    text = path.read_bytes()
    if text.startswith(UTF_16):
        text = text.decode("utf-16").encode()
    text = text.removeprefix(codecs.BOM_UTF8)
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in text else text


def _obj_corners(path: Path, lines: list[bytes]) -> dict[str, np.ndarray]:
    widths = {len(line.split()) for line in lines}
    if len(widths) > 1:
        # Colors are dropped if some corners have no color.
        lines = [b" ".join(line.split()[:3]) for line in lines]
        widths = {min(widths)}
    width = widths.pop() if widths else 3
    if width < 3:
        raise FileFormatError(f"{path} is broken: it has a corner of {width} numbers, not 3")
    names = COLUMNS.get(width, (*"xyz", *("_" * (width - 3))))
    return _number_lines(path, lines, names)


def _number_lines(path: Path, lines: list[bytes], names: Sequence[str]) -> dict[str, np.ndarray]:
    kinds = [np.dtype(np.float64)] * len(names)
    columns = number_columns(path, b"\n".join(lines), kinds)
    named = zip(names, columns, strict=True)
    return {name: values for name, values in named if name != "_"}


def _obj_polygons(text: bytes) -> Sequence[np.ndarray] | np.ndarray:
    lines = POLYGON.findall(text)
    if not lines:
        return np.zeros((0, 3), np.int64)
    joined = b"\n".join(lines)
    if b"/" in joined:
        joined = OTHERS.sub(b"", joined)
        lines = joined.split(b"\n")
    sizes = np.array([len(line.split()) for line in lines], np.int64)
    with warnings.catch_warnings():
        # Older versions of NumPy only warn if a word is no number.
        warnings.simplefilter("error", DeprecationWarning)
        corners = np.fromstring(joined, np.int64, sep=" ")
    if b"-" in joined:
        # Negative numbers count back from the last corner above the polygon.
        kinds = np.array(CORNER_OR_POLYGON.findall(text))
        above = np.cumsum(kinds == b"v")[kinds == b"f"]
        corners = np.where(corners < 0, np.repeat(above, sizes) + corners, corners - 1)
    else:
        corners -= 1
    if len(set(sizes.tolist())) == 1:
        return corners.reshape(len(lines), -1)
    return np.split(corners, np.cumsum(sizes)[:-1])


# Many files of ModelNet begin with "OFF490 518 0", without a space.
KEYWORD = re.compile(r"\s*(ST)?(C)?(N)?(4)?(?:OFF|off)(?![a-zA-Z])")
COMMENT = re.compile(r"#.*")
NO_COLOR: list[str] = []


def _off(path: Path, label_field: str | None) -> Mesh:
    """Read the corners and triangles of a text OFF file, with the colors of corners and faces."""
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
    cloud = cloud_from_columns(_off_columns(rows, keyword), str(path), label_field)
    triangles, owners = fan_triangles(polygons), fan_owners(polygons)
    if not polygons or not all(len(color) in (3, 4) for color in colors):
        return cloud, triangles, None
    nowhere = dict.fromkeys("xyz", np.zeros(len(polygons)))
    named = dict(zip(COLOR, _numbers([color[:3] for color in colors]).T, strict=True))
    return cloud, triangles, cloud_from_columns(nowhere | named, str(path)).select(owners)


def _by_line(lines: list[list[str]], vertices: int, faces: int) -> tuple | None:
    """Parse the words of an OFF file that has one line for each corner and for each face.

    `vertices` and `faces` are the numbers of corners and faces. Return the words of each corner,
    the corner indices of each face, and the words of each face's color, which follow the indices.
    Return None if the lines are arranged differently.
    """
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
    """Parse the words of an OFF file with any line breaks; return the same as :func:`_by_line`.

    The colors of faces are empty, because a color cannot be distinguished from the next face.
    `widths` are the possible numbers of words of a corner. They are tried in order until the last
    face ends exactly at the last word. If no width achieves this, ``widths[0]`` is used.
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


def _off_columns(rows: list[list[str]], keyword: re.Match[str]) -> dict[str, np.ndarray]:
    """Convert the words of R OFF corners to columns [R]: position, normal and color, by name.

    `keyword` is the first word of the file, such as ``NOFF``, which says what a corner has. If
    corners have a weight, positions are divided by it.
    """
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
    """Convert R rows of k words to numbers [R, k]: int64 if all are integers, else float64."""
    try:
        return np.array(rows, np.int64)
    except ValueError:
        return np.array(rows, np.float64)


def _widths(keyword: re.Match[str]) -> list[int]:
    """Return the possible numbers of words of a corner in an OFF file.

    `keyword` is the first word of the file, such as ``NOFF``, which says what a corner has. With
    colors, two numbers are possible: a color has 4 words, but 3 in some files.
    """
    texture, color, normal, weight = map(bool, keyword.groups())
    width = 3 + weight + 3 * normal + 2 * texture
    return [width + 4, width + 3] if color else [width]


HEADER_BYTES = 80
TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
TEXT = b"solid"
VERTEX = re.compile(rb"^[ \t]*vertex[ \t]+([^\n]*)", re.MULTILINE | re.IGNORECASE)
# First words of lines; their counts show whether a file is complete.
WORDS = re.compile(rb"^[ \t]*(solid|endsolid|facet|endfacet)\b", re.MULTILINE | re.IGNORECASE)


def _stl(path: Path, label_field: str | None) -> Mesh:
    """Read the triangles of all solids of an STL file, binary or text."""
    corners = _stl_of_bytes(path)
    if corners is None:
        corners = _stl_of_text(path)
    cloud = cloud_from_columns({"xyz": corners}, str(path), label_field)
    return cloud, np.arange(len(corners)).reshape(-1, 3), None


def _stl_of_bytes(path: Path) -> np.ndarray | None:
    """Read a binary STL: return corners float32 [3 T, 3], 3 per triangle; None for a text file."""
    start = HEADER_BYTES + 4
    with path.open("rb") as stream:
        head = stream.read(start)
        count = int.from_bytes(head[HEADER_BYTES:], "little")
        left = path.stat().st_size - start
        # In a text file, these four bytes are characters, which are too large as a count. Bytes
        # after the last triangle are ignored.
        if TEXT in head.lower() and count * TRIANGLE.itemsize > left:
            return None
        check_count(path, "triangles", count, TRIANGLE.itemsize, left)
        return np.fromfile(stream, TRIANGLE, count)["corners"].reshape(-1, 3)


def _stl_of_text(path: Path) -> np.ndarray:
    """Read a text STL: return corners float64 [3 T, 3], three for each triangle."""
    text = _text(path)
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


def _glb(path: Path, label_field: str | None) -> Mesh:
    return *load_glb(path, label_field), None


READERS: dict[str, Callable[[Path, str | None], Mesh]] = {
    ".obj": _obj,
    ".off": _off,
    ".stl": _stl,
    ".glb": _glb,
}


def read_mesh(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a mesh file and sample ``options.points`` points evenly from its surface.

    The sampled points get the colors and other columns of the vertices, see
    :func:`voxax.io.surface.sample_surface`. Materials, textures and the normals of OBJ and GLB
    meshes are not read. The parts of a GLB scene are placed by its transformations. If a file has
    no triangles, all points are returned; otherwise separate points and lines are left out. The
    axes are those of the file: in glTF, y points up.
    """
    kind = path.suffix.lower()
    with reading(path, kind.removeprefix(".").upper()):
        vertices, triangles, faces = READERS[kind](path, options.label_field)
    if len(vertices) and len(triangles) == 0:
        return vertices
    return sample_surface(vertices, triangles, options, faces)
