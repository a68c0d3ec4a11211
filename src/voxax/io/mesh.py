"""Meshes (OBJ, STL, OFF, GLB), read through trimesh and sampled evenly into points.

Sources: Wavefront OBJ, 3D Systems STL, the Object File Format of Geomview, and glTF 2.0
(Khronos), as read by trimesh. PLY, which holds points as often as meshes, has a reader
of its own (:mod:`voxax.io.ply`) and shares the sampling.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError, InputError, import_extra
from voxax.io.decoding import reading
from voxax.io.options import DEFAULT, SAMPLED_POINTS, ReadOptions
from voxax.io.point_cloud import PointCloud, to_uint8


def sample_surface(
    vertices: np.ndarray,
    triangles: np.ndarray,
    *,
    points: int = SAMPLED_POINTS,
    seed: int = 0,
    colors: np.ndarray | None = None,
    source: str = "",
) -> PointCloud:
    """Draw points from triangles, each triangle in proportion to its area.

    Args:
        vertices: float [V, 3].
        triangles: integers [T, 3], rows of `vertices`.
        points: how many to draw.
        seed: the same seed draws the same points.
        colors: uint8 [V, 3]; interpolated over each triangle into ``rgb``.
        source: goes into the cloud, and into messages.

    Returns:
        `points` points with ``normals`` (float32 [N, 3], of the flat triangle) and
        ``face`` (int32 [N], the triangle of each point).

    Raises:
        FileFormatError: there is no triangle with an area, or one names a vertex that
            is not there.
        InputError: `points` is not positive.
    """
    if points < 1:
        raise InputError(f"points must be at least 1, got {points}")
    if len(triangles) == 0:
        raise FileFormatError(
            f"{source} has no faces: it is empty, cut short, or holds only points"
        )
    for what, rows in (("vertices", vertices), ("triangles", triangles)):
        if rows.ndim != 2 or rows.shape[1] != 3:
            raise FileFormatError(
                f"the {what} of {source} must have shape [N, 3], got {list(rows.shape)}"
            )
    low, high = int(triangles.min()), int(triangles.max())
    if low < 0 or high >= len(vertices):
        raise FileFormatError(
            f"the faces of {source} name vertices {low}..{high}, but it has {len(vertices)}"
        )
    corners = np.asarray(vertices, np.float64)[triangles]
    edge, other = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    normals = np.cross(edge, other)
    doubled_area = np.linalg.norm(normals, axis=1)
    total = doubled_area.sum()
    if not (np.isfinite(total) and total > 0):
        raise FileFormatError(
            f"the {len(triangles)} faces of {source} have a total area of {total / 2}"
        )
    rng = np.random.default_rng(seed)
    # One draw from each of `points` equal strips of the area, instead of independent
    # draws: every triangle gets its share to within one point or two.
    share = (np.arange(points) + rng.random(points)) / points
    cumulative = np.cumsum(doubled_area) / total
    face = np.searchsorted(cumulative, share, side="right")
    face = np.minimum(face, np.flatnonzero(doubled_area)[-1])
    first, second = rng.random((2, points))
    # A point beyond the diagonal of the parallelogram is folded back into the triangle.
    beyond = first + second > 1
    first[beyond], second[beyond] = 1 - first[beyond], 1 - second[beyond]
    weights = np.stack([1 - first - second, first, second], axis=1)
    attributes = {
        "normals": (normals[face] / doubled_area[face, None]).astype(np.float32),
        "face": face.astype(np.int32),
    }
    if colors is not None:
        mixed = np.einsum("nk,nkc->nc", weights, to_uint8(colors)[triangles[face]])
        attributes["rgb"] = np.rint(mixed).astype(np.uint8)
    return PointCloud(np.einsum("nk,nkc->nc", weights, corners[face]), attributes, source=source)


def fan_triangles(polygons: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Split polygons into triangles around their first corner.

    Exact for convex polygons, which is what scanners and modelers write.

    Args:
        polygons: integer arrays [corners], each with its own number of corners, or one
            array [P, corners]; those with fewer than 3 have no area and are left out.

    Returns:
        int64 [T, 3], in the order of the polygons.
    """
    if isinstance(polygons, np.ndarray) and polygons.ndim == 2 and polygons.shape[1] == 3:
        return polygons.astype(np.int64)
    sizes = np.array([len(polygon) for polygon in polygons], np.int64)
    pieces: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for size in np.unique(sizes[sizes >= 3]):
        rows = np.flatnonzero(sizes == size)
        block = np.stack([polygons[int(row)] for row in rows]).astype(np.int64)
        for corner in range(1, size - 1):
            pieces.append(block[:, [0, corner, corner + 1]])
            owners.append(rows)
    if not pieces:
        return np.zeros((0, 3), np.int64)
    return np.concatenate(pieces)[np.argsort(np.concatenate(owners), kind="stable")]


def read_mesh(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a mesh and draw ``options.points`` points evenly from its surface.

    Colors of vertices become ``rgb``; materials and textures are not read. The parts
    of a GLB scene are placed as the scene says. The axes are the file's: glTF puts y up.

    Raises:
        FileFormatError: the file is broken, or has no surface.
        MissingExtraError: trimesh is not installed.
    """
    kind = path.suffix.lower().removeprefix(".")
    trimesh = import_extra(f"reading .{kind}", "io", "trimesh")
    with reading(path, kind.upper()):
        told = {"skip_materials": True} if kind == "obj" else {}
        with path.open("rb") as stream:
            # Left as it is in the file: merging vertices would not change the surface.
            mesh = trimesh.load(stream, file_type=kind, force="mesh", process=False, **told)
        vertices = np.asarray(mesh.vertices)
        triangles = np.asarray(mesh.faces)
        colors = mesh.visual.vertex_colors[:, :3] if mesh.visual.kind == "vertex" else None
    return sample_surface(
        vertices,
        triangles,
        points=options.points,
        seed=options.seed,
        colors=colors,
        source=str(path),
    )
