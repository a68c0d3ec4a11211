"""Read and write PLY, the Stanford polygon format: points, or a mesh whose surface is sampled.

plyfile reads the rows of binary files. It accepts only headers that follow the description of the
format exactly. This module reads headers and ascii rows without it, because many programs write
variants: a byte order mark, spaces at the ends of lines, comments in any encoding, names with
spaces, any mix of line ends, ``255.0`` or ``nan`` in columns of integers, and ``1.#QNAN``, which
Microsoft's C library prints.

Source: Greg Turk, "The PLY Polygon File Format", 1994, as read by plyfile.
"""

import io
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from voxax._atomic_file import replacing
from voxax.errors import FileFormatError, InputError, import_extra
from voxax.io.columns import A_BYTE, COLOR, cloud_from_columns, find_name, free_name
from voxax.io.decoding import MissingFileError, check_columns, check_count, reading
from voxax.io.numbers import number_rows, plain, whole
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud, as_labels
from voxax.io.surface import fan_owners, fan_triangles, sample_surface, strip_triangles

# Largest header, with comments. A file without end_header in its first so many bytes is no PLY.
LONGEST_HEADER = 1 << 20
END = re.compile(rb"[\r\n][ \t]*end_header[ \t]*(\r\n|\r|\n|$)")
NOT_PLAIN = re.compile(r"[^!-~]+")
KEYWORDS = ("format", "element", "property")
ASCII = "ascii"
FORMATS = (ASCII, "binary_little_endian", "binary_big_endian")
# NumPy's names of the types.
TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    # The format has no bool, but pyntcloud writes it.
    **dict.fromkeys(("uchar", "uint8", "bool"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}


@dataclass(frozen=True)
class PlyProperty:
    """A column of a table in a PLY file, as the header declares it.

    Attributes:
      name: the name in the file.
      plain_name: a name that plyfile accepts, without spaces.
      types: PLY names of types, e.g. ``("float",)``; for a list, the types of length and values.
    """

    name: str
    plain_name: str
    types: tuple[str, ...]

    @property
    def is_list(self) -> bool:
        return len(self.types) == 2


@dataclass(frozen=True)
class PlyElement:
    """A table in a PLY file, as the header declares it: name, number of rows, and columns."""

    name: str
    count: int
    properties: list[PlyProperty]


@dataclass(frozen=True)
class PlyHeader:
    """The content of a PLY header: the format, the tables, and the byte where the data begin."""

    format: str
    elements: list[PlyElement]
    data_at: int

    @property
    def canonical(self) -> str:
        """The header rewritten as text that plyfile accepts, without comments."""
        lines = ["ply", f"format {self.format} 1.0"]
        for element in self.elements:
            lines.append(f"element {element.name} {element.count}")
            for column in element.properties:
                types = ("uchar" if kind == "bool" else kind for kind in column.types)
                kind = " ".join(("list", *types) if column.is_list else types)
                lines.append(f"property {kind} {column.plain_name}")
        return "\n".join([*lines, "end_header", ""])


def read_header(path: Path, stream: BinaryIO) -> PlyHeader:
    """Read and check the header of a PLY file at the beginning of `stream`.

    Raise FileFormatError if the file is too small for the number of rows in the header.
    """
    start = stream.read(LONGEST_HEADER)
    text = start.removeprefix(BOM_UTF8)
    end = END.search(text)
    if end is None:
        raise FileFormatError(f"{path} is no PLY file, or is cut short: it has no end_header")
    above = text[: end.start()]
    lines = re.split(r"\r\n|\r|\n", above.decode("latin-1"))
    if lines[0].strip().lower() != "ply":
        raise FileFormatError(f"{path} is no PLY file: its first line is not 'ply'")
    data_at = end.end() + len(start) - len(text)
    if end[1] == b"\r\n" and b"\n" not in above:
        # Lines end in a carriage return without a line feed. The next byte belongs to the data.
        data_at -= 1
    header = _parsed(path, lines, data_at)
    _check_counts(path, header, path.stat().st_size)
    return header


def _parsed(path: Path, lines: list[str], data_at: int) -> PlyHeader:
    layout, elements = "", list[PlyElement]()
    check_columns(path, sum(line.split(None, 1)[:1] == ["property"] for line in lines))
    for number, line in enumerate(lines[1:], 2):
        match line.split():
            case [] | ["comment" | "obj_info", *_]:
                continue
            case ["format", str(layout), *_] if layout in FORMATS:
                continue
            case ["element", name, count] if re.fullmatch(r"[+-]?\d{1,30}", count):
                elements.append(PlyElement(name, int(count), []))
            case ["property", "list", of_length, of_values, *name] if elements and name:
                _add(elements[-1], " ".join(name), (of_length, of_values))
            case ["property", kind, *name] if elements and name:
                _add(elements[-1], " ".join(name), (kind,))
            case [str(word), *_] if layout == ASCII and word not in KEYWORDS:
                # Some programs omit the word comment. The columns are checked with the rows.
                continue
            case _:
                raise FileFormatError(f"line {number} of {path} is not one of PLY: {line[:80]!r}")
    if layout not in FORMATS:
        raise FileFormatError(f"{path} has no format; known are {', '.join(FORMATS)}")
    unknown = {kind for e in elements for p in e.properties for kind in p.types} - set(TYPES)
    if unknown:
        raise FileFormatError(
            f"{path} has columns of unknown types {', '.join(sorted(unknown))}; "
            f"known are {', '.join(TYPES)}"
        )
    return PlyHeader(layout, elements, data_at)


def _add(element: PlyElement, name: str, types: tuple[str, ...]) -> None:
    plain_name = NOT_PLAIN.sub("_", name)
    name = free_name(name, [known.name for known in element.properties])
    plain_name = free_name(plain_name, [known.plain_name for known in element.properties])
    types = tuple(kind.lower() for kind in types)
    element.properties.append(PlyProperty(name, plain_name, types))


def _check_counts(path: Path, header: PlyHeader, size: int) -> None:
    left = size - header.data_at
    for element in header.elements:
        if header.format == ASCII:
            # A number takes a digit, and a space or line end, which the last line may lack.
            smallest, spare, exact = 2 * len(element.properties), 1, False
        else:
            # A list takes at least the bytes of its length.
            types = [column.types[0] for column in element.properties]
            smallest, spare = sum(np.dtype(TYPES[kind]).itemsize for kind in types), 0
            exact = not any(column.is_list for column in element.properties)
        smallest = max(smallest, 1)
        check_count(
            path, f"rows of {element.name}", element.count, smallest, left + spare, exact=exact
        )
        left -= element.count * smallest


def read_rows(path: Path, stream: BinaryIO, header: PlyHeader) -> dict[str, dict[str, np.ndarray]]:
    """Read the rows of an ascii PLY file; return ``{table: {column: array}}``, by names.

    A column has the type in the header. A column of integers with other values becomes float64.
    A column of lists is [N, k] if all rows have the same length k, else an array of arrays.
    """
    stream.seek(header.data_at)
    if stream.read(len(BOM_UTF8)) != BOM_UTF8:
        stream.seek(header.data_at)
    text = io.TextIOWrapper(stream, encoding="latin-1")  # accepts all kinds of line ends
    try:
        lines = (line.encode("latin-1") for line in text if not line.isspace())
        return {element.name: _columns(path, element, lines) for element in header.elements}
    finally:
        # The caller closes the stream.
        text.detach()


def _columns(path: Path, element: PlyElement, lines: Iterator[bytes]) -> dict[str, np.ndarray]:
    listed = element.properties
    if any(column.is_list for column in listed):
        columns, found = _split(path, element, islice(lines, element.count))
    else:
        kinds = [np.dtype(TYPES[column.types[0]]) for column in listed]
        try:
            numbers = number_rows(path, lines, element.count, kinds) if kinds else []
        except FileFormatError as error:
            raise FileFormatError(f"the rows of {element.name}: {error}") from error
        found = len(numbers[0]) if kinds else sum(1 for _ in islice(lines, element.count))
        columns = {column.name: own for column, own in zip(listed, numbers, strict=True)}
    check_count(path, f"rows of {element.name}", element.count, 1, found)
    return columns


def _split(
    path: Path, element: PlyElement, rows: Iterator[bytes]
) -> tuple[dict[str, np.ndarray], int]:
    """Parse the text `rows` of the table `element`, some of whose columns have lists.

    A list is stored as its length, then its values. Return the columns by name, as in
    :func:`read_rows`, and the number of rows.
    """
    words: dict[str, list[list[bytes]]] = {column.name: [] for column in element.properties}
    found = 0
    for row in rows:
        rest = plain(row).split()
        for column in element.properties:
            size = int(rest.pop(0)) if column.is_list and rest else 1
            if not 0 <= size <= len(rest):
                raise FileFormatError(
                    f"row {found} of {element.name} in {path} ends before its {column.name}"
                )
            words[column.name].append(rest[:size])
            rest = rest[size:]
        found += 1
    columns: dict[str, np.ndarray] = {}
    for column in element.properties:
        kind, values = np.dtype(TYPES[column.types[-1]]), words[column.name]
        if not column.is_list:
            columns[column.name] = whole(np.array(values, float).reshape(-1), kind)
        elif len(set(map(len, values))) == 1:
            columns[column.name] = np.array(values, kind)
        else:
            columns[column.name] = np.empty(found, object)
            columns[column.name][:] = [np.array(value, kind) for value in values]
    return columns, found


FACE_LISTS = ("vertex_indices", "vertex_index")
# Tables that refer to vertices. A range grid has the vertex of each cell of a scanner's image.
SURFACES = ("face", "tristrips", "range_grid")
MOST_BYTES = 1 << 30

Tables = dict[str, dict[str, np.ndarray]]


def read_ply(path: Path, options: ReadOptions) -> PointCloud:
    """Read a PLY file, ascii or binary, as a point cloud.

    If the file has no faces, :func:`voxax.io.columns.cloud_from_columns` converts the columns of
    its vertices. A file with faces or triangle strips is a mesh, and ``options.points`` points are
    sampled evenly from its surface. :func:`voxax.io.surface.sample_surface` gives these points the
    colors and other columns of the vertices and faces.
    """
    plyfile = import_extra("reading .ply", "io", "plyfile")
    with reading(path, "PLY"):
        elements = _load(plyfile, path)
        triangles, columns = _triangles(elements, path)
        field = options.label_field
        of_faces = field is not None and find_name(columns, field) is not None
        cloud = _vertices(elements, path, None if of_faces else field)
        if not len(triangles):
            return cloud
        # cloud_from_columns requires positions. The positions of the triangles are not used.
        columns |= dict.fromkeys("xyz", np.zeros(len(triangles)))
        faces = cloud_from_columns(columns, str(path), field if of_faces else None)
    return sample_surface(cloud, triangles, options, faces)


def read_ply_vertices(path: Path) -> PointCloud:
    """Read only the vertices of a PLY file as a cloud with their columns; faces are ignored."""
    plyfile = import_extra("reading .ply", "io", "plyfile")
    with reading(path, "PLY"):
        return _vertices(_load(plyfile, path), path)


def write_ply(
    path: str | os.PathLike[str],
    positions: ArrayLike,
    labels: ArrayLike | None = None,
    colors: ArrayLike | None = None,
) -> None:
    """Write points to a binary little-endian PLY file, which common viewers can open.

    An error leaves no partial file, because a temporary file in the same folder is renamed last.

    Args:
      path: the file to write, with a name that ends in ``.ply``; an existing file is replaced.
      positions: the points, [N, 3]. float64 is written as ``double``, other types as ``float``.
      labels: integers [N], written as the int column ``label``; None writes no labels.
      colors: [N, 3], integers in 0..255, or floats in 0..1, written as ``red green blue``; None
        writes none.

    Raises:
      InputError: a shape or a length is wrong, a color is out of range, or the name does not end in
        ``.ply``.
      MissingFileError: the folder does not exist.
      OSError: the file cannot be written, or is a folder.
      MissingExtraError: plyfile is not installed.
    """
    target = Path(path).expanduser()
    if target.suffix.lower() != ".ply":
        raise InputError(f"the name must end in .ply, got {target}")
    points = np.asarray(positions)
    cloud = PointCloud(points, labels=None if labels is None else as_labels(labels))
    real = "f8" if points.dtype == np.float64 else "f4"
    columns: dict[str, tuple[str, np.ndarray]] = {
        name: (real, cloud.positions[:, axis]) for axis, name in enumerate("xyz")
    }
    if colors is not None:
        rgb = np.asarray(colors)
        if rgb.shape != cloud.positions.shape or rgb.dtype.kind not in "iuf":
            raise InputError(
                f"colors must be numbers of shape {list(cloud.positions.shape)}, "
                f"got shape {list(rgb.shape)} and dtype {rgb.dtype}"
            )
        top = 1 if rgb.dtype.kind == "f" else A_BYTE
        wrong = ~((rgb >= 0) & (rgb <= top))
        if wrong.any():
            raise InputError(
                f"colors of {rgb.dtype} must lie in 0..{top}: {wrong.sum()} do not, the first is "
                f"{rgb[wrong][0]}"
            )
        rgb = np.rint(rgb * (A_BYTE / top)).astype(np.uint8)
        columns |= {name: ("u1", rgb[:, axis]) for axis, name in enumerate(COLOR)}
    if cloud.labels is not None:
        columns["label"] = ("i4", cloud.labels)
    rows = np.empty(len(cloud), dtype=[(name, kind) for name, (kind, _) in columns.items()])
    for name, (_, values) in columns.items():
        rows[name] = values
    plyfile = import_extra("writing .ply", "io", "plyfile")
    element = plyfile.PlyElement.describe(rows, "vertex")
    if not target.parent.is_dir():
        raise MissingFileError(f"no such folder to write into: {target.parent.absolute()}")
    with replacing(target) as stream:
        plyfile.PlyData([element], byte_order="<").write(stream)


def _vertices(elements: Tables, path: Path, label_field: str | None = None) -> PointCloud:
    if "vertex" not in elements:
        held = ", ".join(elements) or "nothing"
        raise FileFormatError(f"{path} has no vertices; it holds {held}")
    return cloud_from_columns(_scalars(elements["vertex"]), str(path), label_field)


def _scalars(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return only the columns with one number in each row, without columns of lists."""
    return {
        name: values
        for name, values in columns.items()
        if values.ndim == 1 and values.dtype != object
    }


def _load(plyfile: ModuleType, path: Path) -> Tables:
    """Read a PLY file; return ``{table: {column: array}}``, with names of tables in lower case.

    Columns of a binary file are memory-mapped, so the caller must copy the columns that it keeps.
    """
    with path.open("rb") as stream:
        header = read_header(path, stream)
        if header.format == ASCII:
            rows = read_rows(path, stream, header)
            return {name.lower(): columns for name, columns in rows.items()}
        # Most meshes have only triangles, with 3 corners and 3 pairs of texture coordinates.
        # plyfile reads lists of a known length 100 times faster.
        triangles = {
            element.name: {
                column.plain_name: 6 if "tex" in column.name else 3
                for column in element.properties
                if column.is_list
            }
            for element in header.elements
        }
        try:
            data = plyfile.PlyData.read(_Canonical(header, stream), known_list_len=triangles)
        except plyfile.PlyParseError:
            data = plyfile.PlyData.read(_Canonical(header, stream))
    return {
        element.name.lower(): {
            column.name: data[element.name][column.plain_name] for column in element.properties
        }
        for element in header.elements
    }


class _Canonical:
    """Stream of a PLY file whose header is replaced by the standard text ``header.canonical``.

    `read` returns this text, and after it the file's data. ``tell`` and ``seek`` are those of the
    file itself, so they do not count the replaced header.
    """

    def __init__(self, header: PlyHeader, data: BinaryIO) -> None:
        self.header, self.data = io.BytesIO(header.canonical.encode()), data
        data.seek(header.data_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def read(self, size: int) -> bytes:
        # A broken file can declare a list longer than memory, so the size of a read is limited.
        return self.header.read(size) or self.data.read(min(size, MOST_BYTES))


def _triangles(elements: Tables, path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the T triangles [T, 3] of all faces and strips, and columns [T] of face properties.

    The dict of columns is empty if the file has strips, which have no properties.
    """
    for name, columns in elements.items():
        rows = max(map(len, columns.values()), default=0)
        if rows and name not in SURFACES and any(known in columns for known in FACE_LISTS):
            raise FileFormatError(
                f"{path} has {rows} rows of {name!r}, which name vertices and are not read: only "
                "face and tristrips are a surface here. Export it with these"
            )
    faces, strips = elements.get("face", {}), elements.get("tristrips", {})
    triangles, columns = strip_triangles(_lists(strips, path)), dict[str, np.ndarray]()
    polygons = _lists(faces, path)
    if len(polygons):
        if not len(triangles):
            owners = fan_owners(polygons)
            columns = {name: values[owners] for name, values in _scalars(faces).items()}
        triangles = np.concatenate([fan_triangles(polygons), triangles])
    return triangles, columns


def _lists(columns: Mapping[str, np.ndarray], path: Path) -> np.ndarray:
    if not any(map(len, columns.values())):
        return np.zeros((0, 3), np.int64)
    for name in FACE_LISTS:
        if name in columns:
            return np.array(columns[name])
    raise FileFormatError(
        f"the faces of {path} have no {' or '.join(FACE_LISTS)}, only {', '.join(columns)}"
    )
