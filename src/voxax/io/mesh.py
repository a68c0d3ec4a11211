"""Meshes (OBJ, STL, OFF, GLB), sampled evenly into points.

PLY, which holds points as often as meshes, has a reader of its own (:mod:`voxax.io.ply`) and shares
the sampling.
"""

from pathlib import Path

import numpy as np

from voxax.io.decoding import reading
from voxax.io.glb import load_glb
from voxax.io.obj import load_obj
from voxax.io.off import load_off
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud
from voxax.io.stl import load_stl
from voxax.io.surface import corner_counts, fan_triangles, sample_surface


def read_mesh(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a mesh and draw ``options.points`` points evenly from its surface.

    Colors and other columns of the vertices go with the points, as
    :func:`voxax.io.surface.sample_surface` says; materials, textures and the normals of
    OBJ and GLB are not read. The parts of a GLB scene are placed as the scene says; points
    and lines beside a surface are left out. A file of points alone is a point cloud. The
    axes are the file's: glTF puts y up.

    Raises:
        FileFormatError: the file is broken, or has neither a surface nor points.
    """
    kind = path.suffix.lower().removeprefix(".")
    field, faces = options.label_field, None
    with reading(path, kind.upper()):
        if kind == "off":
            vertices, polygons, faces = load_off(path, field)
            triangles = fan_triangles(polygons)
            if faces is not None:
                faces = faces.select(
                    np.repeat(np.arange(len(polygons)), np.maximum(corner_counts(polygons) - 2, 0))
                )
        elif kind == "obj":
            vertices, polygons = load_obj(path, field)
            triangles = fan_triangles(polygons)
        elif kind == "stl":
            vertices, triangles = load_stl(path, field)
        else:
            vertices, triangles = load_glb(path, field)
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
