"""Reads any supported scan into one form."""

import os
from dataclasses import replace

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.files import existing_file
from voxax.io.labels import read_labels_and_attributes
from voxax.io.point_cloud import PointCloud
from voxax.io.registry import format_of
from voxax.io.surface import SAMPLED_POINTS


def read(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    points: int = SAMPLED_POINTS,
    seed: int = 0,
) -> PointCloud:
    """Read a scan or a mesh; the end of its name decides the format.

    - ``.bin``: KITTI, SemanticKITTI: x, y, z, intensity
    - ``.pcd.bin``: nuScenes: x, y, z, intensity, ring
    - ``.ply``: points, or a mesh if it has faces
    - ``.pcd``: Point Cloud Library: ascii, binary, binary_compressed
    - ``.las``, ``.laz``: ASPRS: airborne and mobile scans
    - ``.npz``: ``xyz``, and optionally ``origin``, ``label`` and others
    - ``.obj``, ``.stl``, ``.off``, ``.glb``: meshes

    Rows whose position is not finite hold no measurement (organised clouds of depth
    cameras have many) and are dropped, with their attributes and labels.

    Args:
        path: the file.
        labels: a ``.label``, ``.npy`` or ``.npz`` with one label per row of the file,
            or per point that is left. They replace labels inside the scan; a
            ``.label`` also adds the attribute ``instance``.
        points: how many points to draw from the surface, for meshes only.
        seed: of that drawing.

    Returns:
        The points, in the units and axes of the file.

    Raises:
        FileFormatError: a file is missing (then also a FileNotFoundError), empty,
            broken, of an unknown kind, or has another number of labels than points.
        InputError: `points` is not positive.
        MissingExtraError: the library for this format is not installed.
    """
    found = existing_file(path)
    kind = format_of(found)
    cloud = kind.reader(found, points=points, seed=seed) if kind.surface else kind.reader(found)
    finite = np.isfinite(cloud.positions).all(axis=1)
    left = int(finite.sum())
    if left == 0:
        raise FileFormatError(
            f"{found} holds no points: {len(cloud)} rows, none with a finite position"
            if len(cloud)
            else f"{found} holds no points"
        )
    if labels is not None:
        values, attributes = read_labels_and_attributes(labels)
        if len(values) not in (len(cloud), left):
            raise FileFormatError(
                f"{len(values)} labels in {os.fspath(labels)} for {_counted(len(cloud), left)} "
                f"in {found}"
            )
        if len(values) == left:
            cloud, finite = cloud.select(finite), np.ones(left, bool)
        cloud = replace(cloud, labels=values, attributes=cloud.attributes | attributes)
    return cloud if finite.all() else cloud.select(finite)


def _counted(rows: int, left: int) -> str:
    if rows == left:
        return f"{rows} points"
    return f"{rows} rows ({left} points with a finite position)"
