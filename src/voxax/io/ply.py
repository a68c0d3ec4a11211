"""PLY, the Stanford polygon format: points, or a mesh whose surface is sampled.

Source: Greg Turk, "The PLY Polygon File Format", 1994, as read by plyfile.
"""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike

from voxax._atomic_file import replacing
from voxax.errors import FileFormatError, InputError, import_extra
from voxax.io.columns import cloud_from_columns, find_name
from voxax.io.decoding import MissingFileError, reading
from voxax.io.options import ReadOptions
from voxax.io.ply_header import ASCII, PlyHeader, read_header
from voxax.io.ply_text import read_rows
from voxax.io.point_cloud import PointCloud, as_labels, to_uint8
from voxax.io.surface import corner_counts, fan_triangles, sample_surface, strip_triangles

FACE_LISTS = ("vertex_indices", "vertex_index")
# What names vertices. A range grid tells which cell of a scanner's image each is of, if any.
SURFACES = ("face", "tristrips", "range_grid")
MOST_BYTES = 1 << 30

Tables = dict[str, dict[str, np.ndarray]]


def read_ply(path: Path, options: ReadOptions) -> PointCloud:
    """Read a PLY file, ascii or binary of either byte order.

    A file without faces is a point cloud; its columns are sorted as
    :func:`voxax.io.columns.cloud_from_columns` says. A file with faces or triangle
    strips is a mesh: ``options.points`` points are drawn evenly from its surface. They carry
    the columns of the vertices and of the faces, as
    :func:`voxax.io.surface.sample_surface` says.

    Raises:
        FileFormatError: the file is broken, or has no positions.
        MissingExtraError: plyfile is not installed.
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
        # Sorted as the columns of points are; the positions of triangles are of no use.
        columns |= dict.fromkeys("xyz", np.zeros(len(triangles)))
        faces = cloud_from_columns(columns, str(path), field if of_faces else None)
    return sample_surface(
        cloud.positions,
        triangles,
        points=options.points,
        seed=options.seed,
        of_vertices=cloud,
        of_triangles=faces,
        source=str(path),
    )


def read_ply_vertices(path: Path) -> PointCloud:
    """Read the vertices of a PLY file, with their columns, and no faces.

    Raises:
        FileFormatError: the file is broken, or has no positions.
        MissingExtraError: plyfile is not installed.
    """
    plyfile = import_extra("reading .ply", "io", "plyfile")
    with reading(path, "PLY"):
        return _vertices(_load(plyfile, path), path)


def write_ply(
    path: str | os.PathLike[str],
    positions: ArrayLike,
    labels: ArrayLike | None = None,
    colors: ArrayLike | None = None,
) -> None:
    """Write points as a binary little-endian PLY that common viewers open.

    The file appears whole or not at all: it is written beside its place and moved there.

    Args:
        path: ends in ``.ply``; an existing file is replaced.
        positions: [N, 3]; float64 is written as ``double``, everything else as ``float``.
        labels: integers [N], written as the int column ``label``.
        colors: [N, 3], uint8, or floats in 0..1; written as ``red green blue``.

    Raises:
        InputError: a shape or a length is wrong, or the name does not end in ``.ply``.
        MissingFileError: the folder does not exist.
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
        rgb = to_uint8(rgb)
        columns |= {
            name: ("u1", rgb[:, axis]) for axis, name in enumerate(("red", "green", "blue"))
        }
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
    """Return the columns that hold one number in each row, and no lists."""
    return {
        name: values
        for name, values in columns.items()
        if values.ndim == 1 and values.dtype != object
    }


def _load(plyfile: ModuleType, path: Path) -> Tables:
    """Return the columns of each element, memory-mapped where binary; copy what is kept."""
    with path.open("rb") as stream:
        header = read_header(path, stream)
        if header.format == ASCII:
            rows = read_rows(path, stream, header)
            return {name.lower(): columns for name, columns in rows.items()}
        # Nearly every mesh has triangles only, with 3 pairs of texture coordinates, and is
        # read 100 times faster if told so.
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
    """A PLY file with another header: its bytes come first, and are no part of positions."""

    def __init__(self, header: PlyHeader, data: BinaryIO) -> None:
        self.header, self.data = io.BytesIO(header.canonical.encode()), data
        data.seek(header.data_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def read(self, size: int) -> bytes:
        # A list may claim to be longer than memory: what is not there is not asked for.
        return self.header.read(size) or self.data.read(min(size, MOST_BYTES))


def _triangles(elements: Tables, path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return all triangles [T, 3], and the columns of the faces, one row for each triangle."""
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
            owners = np.repeat(np.arange(len(polygons)), np.maximum(corner_counts(polygons) - 2, 0))
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
