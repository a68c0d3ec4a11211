"""Meshes (OBJ, STL, OFF, GLB), read through trimesh and sampled into points.

Sources: Wavefront OBJ, 3D Systems STL, the Object File Format of Geomview, and glTF 2.0
(Khronos), as read by trimesh. PLY, which holds points as often as meshes, has a reader
of its own.
"""

from pathlib import Path

import numpy as np

from voxax.io.extras import require
from voxax.io.files import reading
from voxax.io.point_cloud import PointCloud
from voxax.io.surface import SAMPLED_POINTS, sample_surface


def read_mesh(path: Path, points: int = SAMPLED_POINTS, seed: int = 0) -> PointCloud:
    """Read a mesh and draw `points` points evenly from its surface.

    Colours of vertices become ``rgb``; materials and textures are not read. The parts
    of a GLB scene are placed as the scene says. The axes are the file's: glTF puts y up.

    Raises:
        FileFormatError: the file is broken, or has no surface.
        MissingExtraError: trimesh is not installed.
    """
    kind = path.suffix.lower().removeprefix(".")
    trimesh = require(f"reading .{kind}", "trimesh")
    with reading(path, kind.upper()):
        options = {"skip_materials": True} if kind == "obj" else {}
        with path.open("rb") as stream:
            # Left as it is in the file: merging vertices would not change the surface.
            mesh = trimesh.load(stream, file_type=kind, force="mesh", process=False, **options)
        vertices = np.asarray(mesh.vertices)
        triangles = np.asarray(mesh.faces)
        colors = mesh.visual.vertex_colors[:, :3] if mesh.visual.kind == "vertex" else None
    return sample_surface(
        vertices, triangles, points=points, seed=seed, colors=colors, source=str(path)
    )
