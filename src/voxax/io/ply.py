"""PLY, the Stanford polygon format: points, or a mesh whose surface is sampled.

Source: Greg Turk, "The PLY Polygon File Format", 1994, as read by plyfile.
"""

import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from voxax._atomic_file import replacing
from voxax.errors import FileFormatError, InputError, import_extra
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import MissingFileError, reading
from voxax.io.mesh import fan_triangles, sample_surface
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud, as_labels, to_uint8

# Enough to reach the format, which is among the first lines.
HEADER_BYTES = 4096
FACE_LISTS = ("vertex_indices", "vertex_index")


def read_ply(path: Path, options: ReadOptions) -> PointCloud:
    """Read a PLY file, ascii or binary of either byte order.

    A file without faces is a point cloud; its columns are sorted as
    :func:`voxax.io.columns.cloud_from_columns` says. A file with faces is a mesh:
    ``options.points`` points are drawn evenly from its surface.

    Raises:
        FileFormatError: the file is broken, or has no positions.
        MissingExtraError: plyfile is not installed.
    """
    plyfile = import_extra("reading .ply", "io", "plyfile")
    with reading(path, "PLY"):
        data = _load(plyfile, path)
        cloud = _vertices(plyfile, data, path, options.label_field)
        if "face" not in data or data["face"].count == 0:
            return cloud
        triangles = fan_triangles(_polygons(data["face"], path))
    colors = cloud.attributes.get("rgb")
    return sample_surface(
        cloud.positions,
        triangles,
        points=options.points,
        seed=options.seed,
        colors=colors,
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
        return _vertices(plyfile, _load(plyfile, path), path)


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


def _vertices(
    plyfile: ModuleType, data: Any, path: Path, label_field: str | None = None
) -> PointCloud:
    if "vertex" not in data:
        held = ", ".join(element.name for element in data.elements) or "nothing"
        raise FileFormatError(f"{path} has no vertices; it holds {held}")
    vertices = data["vertex"]
    columns = {
        prop.name: vertices[prop.name]
        for prop in vertices.properties
        if not isinstance(prop, plyfile.PlyListProperty)
    }
    return cloud_from_columns(columns, str(path), label_field)


def _load(plyfile: ModuleType, path: Path) -> Any:
    """Return the content, memory-mapped where binary; copy what is kept."""
    with path.open("rb") as stream:
        header = stream.read(HEADER_BYTES).partition(b"end_header")[0]
    if re.search(rb"[\r\n]format\s+ascii", header):
        # Opened as text, since plyfile would wrap a binary stream and leave it open.
        with path.open(encoding="ascii", errors="replace") as stream:
            return plyfile.PlyData.read(stream)
    with path.open("rb") as stream:
        try:
            # Nearly every mesh has triangles only, and is read 100 times faster if told so.
            triangles = {"face": dict.fromkeys(FACE_LISTS, 3)}
            return plyfile.PlyData.read(stream, known_list_len=triangles)
        except plyfile.PlyParseError:
            stream.seek(0)
            return plyfile.PlyData.read(stream)


def _polygons(faces: Any, path: Path) -> np.ndarray:
    listed = [prop.name for prop in faces.properties]
    for name in FACE_LISTS:
        if name in listed:
            return np.array(faces[name])
    raise FileFormatError(
        f"the faces of {path} have no {' or '.join(FACE_LISTS)}, only {', '.join(listed)}"
    )
