"""Meshes (OBJ, STL, OFF, GLB), sampled evenly into points.

Sources: Wavefront OBJ, 3D Systems STL, the Object File Format of Geomview, and glTF 2.0
(Khronos), as read by trimesh; binary STL, OBJ and OFF are read here. PLY, which holds points as
often as meshes, has a reader of its own (:mod:`voxax.io.ply`) and shares the sampling.
"""

import io
import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count, reading
from voxax.io.obj import load_obj
from voxax.io.off import load_off
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud, to_uint8
from voxax.io.surface import corner_counts, fan_triangles, sample_surface

STL_HEADER_BYTES = 80
STL_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
STL_TEXT = b"solid"

GLB_HEADER = struct.Struct("<4xII")  # the version, and the length of the file
GLB_VERSION = 2
GLB_CHUNK = struct.Struct("<I4x")
# Zeros, or what an extension decompresses, need no bytes of their own.
GLB_RATIO = 100
GLB_COMPONENT_BYTES = {5120: 1, 5121: 1, 5122: 2, 5123: 2, 5125: 4, 5126: 4}
GLB_COMPONENTS = {
    "SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16
}  # fmt: skip


def read_mesh(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a mesh and draw ``options.points`` points evenly from its surface.

    Colors and other columns of the vertices go with the points, as
    :func:`voxax.io.surface.sample_surface` says; materials, textures and the normals of
    OBJ and GLB are not read. The parts of a GLB scene are placed as the scene says; points
    and lines beside a surface are left out. A file of points alone is a point cloud. The
    axes are the file's: glTF puts y up.

    Raises:
        FileFormatError: the file is broken, or has neither a surface nor points.
        MissingExtraError: trimesh, for text STL and GLB, is not installed.
    """
    kind = path.suffix.lower().removeprefix(".")
    faces = None
    with reading(path, kind.upper()):
        if kind == "off":
            vertices, polygons, faces = load_off(path, options.label_field)
            triangles = fan_triangles(polygons)
            if faces is not None:
                faces = faces.select(
                    np.repeat(np.arange(len(polygons)), np.maximum(corner_counts(polygons) - 2, 0))
                )
        elif kind == "obj":
            vertices, polygons = load_obj(path, options.label_field)
            triangles = fan_triangles(polygons)
        elif kind == "stl" and (corners := _binary_stl(path)) is not None:
            vertices = cloud_from_columns({"xyz": corners}, str(path), options.label_field)
            triangles = np.arange(len(corners)).reshape(-1, 3)
        else:
            trimesh = import_extra(f"reading .{kind}", "io", "trimesh")
            vertices, triangles = _load(trimesh, path, kind, options.label_field)
    if len(vertices) and len(triangles) == 0:
        return vertices
    return sample_surface(
        vertices.positions,
        triangles,
        points=options.points,
        seed=options.seed,
        of_vertices=vertices,
        of_triangles=faces,
        source=str(path),
    )


def _binary_stl(path: Path) -> np.ndarray | None:
    """Return the corners, float32 [3 T, 3], three for each triangle; None for a file of text."""
    start = STL_HEADER_BYTES + 4
    with path.open("rb") as stream:
        head = stream.read(start)
        count = int.from_bytes(head[STL_HEADER_BYTES:], "little")
        left = path.stat().st_size - start
        # Four characters of text are a number too large for any file; what stands behind
        # the last triangle is of no meaning.
        if STL_TEXT in head.lower() and count * STL_TRIANGLE.itemsize > left:
            return None
        check_count(path, "triangles", count, STL_TRIANGLE.itemsize, left)
        return np.fromfile(stream, STL_TRIANGLE, count)["corners"].reshape(-1, 3)


def _load(
    trimesh: ModuleType, path: Path, kind: str, label_field: str | None
) -> tuple[PointCloud, np.ndarray]:
    """Return the vertices with what is known of each, and the triangles, int [T, 3]."""
    with io.BytesIO(_checked_glb(path)) if kind == "glb" else path.open("rb") as stream:
        # Left as it is in the file: merging vertices would not change the surface.
        scene = trimesh.load(stream, file_type=kind, force="scene", process=False)
    parts = scene.dump()
    meshes = [part for part in parts if isinstance(part, trimesh.Trimesh)]
    clouds = [part for part in parts if isinstance(part, trimesh.PointCloud)]
    columns: dict[str, np.ndarray] = {}
    triangles = np.zeros((0, 3), np.int64)
    if meshes:
        mesh = trimesh.util.concatenate(meshes)
        positions, triangles = np.asarray(mesh.vertices), np.asarray(mesh.faces)
        colors = mesh.visual.vertex_colors if mesh.visual.kind == "vertex" else None
        # Attributes of an application begin with an underscore in glTF.
        columns = {
            name.lstrip("_"): np.squeeze(values)
            for name, values in mesh.vertex_attributes.items()
            if values.ndim <= 2
        }
    elif clouds:
        positions = np.concatenate([cloud.vertices for cloud in clouds])
        listed = [cloud.colors for cloud in clouds if len(cloud.colors) == len(cloud.vertices)]
        colors = np.concatenate(listed) if len(listed) == len(clouds) else None
    else:
        positions, colors = np.zeros((0, 3)), None
    columns |= dict(zip("xyz", positions.T, strict=True))
    vertices = cloud_from_columns(columns, str(path), label_field)
    if colors is not None:
        vertices.attributes["rgb"] = to_uint8(np.asarray(colors)[:, :3])
    return vertices, triangles


def _checked_glb(path: Path) -> bytes:
    """Return a GLB file up to the length that it states, after checking what it says it holds."""
    content = path.read_bytes()
    at, size = GLB_HEADER.size, len(content)
    chunks: list[bytes] = []
    if size >= at:
        version, length = GLB_HEADER.unpack_from(content)
        if version != GLB_VERSION:
            raise FileFormatError(f"{path} is glTF of version {version}: {GLB_VERSION} is read")
        # What stands behind the end is of no meaning.
        content = content[:length]
        while at + GLB_CHUNK.size <= len(content):
            (length,) = GLB_CHUNK.unpack_from(content, at)
            at += GLB_CHUNK.size
            check_count(path, "bytes of a chunk", length, 1, len(content) - at)
            chunks.append(content[at : at + length])
            at += length
    if not chunks:
        raise FileFormatError(f"{path} is cut short: its {size} bytes hold no part of a scene")
    values = sum(
        accessor["count"]
        * GLB_COMPONENTS[accessor["type"]]
        * GLB_COMPONENT_BYTES[accessor["componentType"]]
        for accessor in json.loads(chunks[0]).get("accessors", [])
    )
    check_count(path, "bytes of values", values, 1, size * GLB_RATIO, exact=False)
    return content
