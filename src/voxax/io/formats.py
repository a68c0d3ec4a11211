"""Read a file of any supported format as a `PointCloud`; the end of its name selects the reader.

Labels may be in a separate file with one label for each point.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import SupportsIndex

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import chosen_items
from voxax.io.decoding import GZIP, existing_file, unpacked
from voxax.io.e57 import read_e57
from voxax.io.hdf5 import read_hdf5
from voxax.io.las import read_las
from voxax.io.mesh import read_mesh
from voxax.io.numpy_files import read_npy, read_npy_labels, read_npz, read_npz_labels
from voxax.io.options import SAMPLED_POINTS, ReadOptions, checked_columns
from voxax.io.pcd import read_pcd
from voxax.io.ply import read_ply
from voxax.io.point_cloud import PointCloud
from voxax.io.ptx import read_ptx
from voxax.io.records import KITTI_FIELDS, read_bin, read_nuscenes, read_packed_labels
from voxax.io.table import read_table
from voxax.io.text import read_text
from voxax.io.torch_file import read_torch

LabelReader = Callable[[Path, str | None], tuple[np.ndarray, dict[str, np.ndarray]]]


PACKED_LABELS = ".label"
# The reader for each end of a file's name, with the dot and in lower case.
# A reader raises FileFormatError if a file is broken, cut short or has no positions, and
# MissingExtraError if the library that it needs is not installed.
READERS: dict[str, Callable[[Path, ReadOptions], PointCloud]] = {
    ".pcd.bin": read_nuscenes,
    ".bin": read_bin,
    ".pcd": read_pcd,
    ".las": read_las,
    ".laz": read_las,
    ".npz": read_npz,
    ".npy": read_npy,
    **dict.fromkeys((".txt", ".csv", ".xyz", ".xyzn", ".xyzrgb", ".pts", ".asc"), read_text),
    **dict.fromkeys((".h5", ".hdf5"), read_hdf5),
    **dict.fromkeys((".pt", ".pth"), read_torch),
    **dict.fromkeys((".feather", ".parquet"), read_table),
    ".e57": read_e57,
    ".ptx": read_ptx,
    ".ply": read_ply,
    **dict.fromkeys((".obj", ".stl", ".off", ".glb"), read_mesh),
}
# Their files can have several clouds, from which the option `item` selects.
READERS_OF_SEVERAL = (read_npz, read_npy, read_hdf5, read_torch, read_e57, read_ptx)
LABEL_READERS: dict[str, LabelReader] = {
    PACKED_LABELS: read_packed_labels,
    ".npy": read_npy_labels,
    ".npz": read_npz_labels,
}


def readable_extensions() -> tuple[str, ...]:
    """Return the file name endings that :func:`voxax.io.read` supports, e.g. ``.ply``, sorted."""
    return tuple(sorted(READERS))


# NaN and infinity may be in the file. NumPy should not warn about them.
@np.errstate(invalid="ignore", over="ignore")
def read(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    columns: SupportsIndex | Sequence[str] | None = None,
    label_field: str | None = None,
    delimiter: str | None = None,
    item: int | None = None,
    points: int = SAMPLED_POINTS,
    seed: int = 0,
) -> PointCloud:
    """Read a file with a scan or a mesh as a `PointCloud`; the end of its name is the format.

    - ``.bin``: float32 records: x, y, z, intensity (KITTI), or the `columns` that you give
    - ``.pcd.bin``: nuScenes: x, y, z, intensity, ring
    - ``.ply``: points, or a mesh if it has faces
    - ``.pcd``: Point Cloud Library: ascii, binary, binary_compressed
    - ``.las``, ``.laz``: ASPRS: airborne and mobile scans
    - ``.npz``: ``xyz``, and optionally ``origin``, ``label`` and others
    - ``.npy``: an array [N, k], a structured one [N], or [B, N, k], which is B clouds
    - ``.txt``, ``.csv``, ``.xyz``, ``.xyzn``, ``.xyzrgb``, ``.pts``, ``.asc``: text, one point in
      each line
    - ``.h5``, ``.hdf5``: arrays by name, of one cloud or many: ModelNet40, PILArNet
    - ``.pt``, ``.pth``: tensors or arrays that ``torch.save`` wrote; no code in the file is run
    - ``.feather``, ``.parquet``: tables: Argoverse 2
    - ``.e57``, ``.ptx``: ASTM, Leica: terrestrial scans, placed by their poses
    - ``.obj``, ``.stl``, ``.off``, ``.glb``: meshes
    - any of these names followed by ``.gz``; the file is unpacked into a temporary file

    Rows whose position is not finite are no measurements (organized clouds of depth cameras have
    many such rows). These rows are dropped, with their attributes and labels.

    :mod:`voxax.io.columns` lists the names of columns for positions, colors, normals and
    labels. A missing label (NaN, "not set") is -1.

    Args:
      path: the file.
      labels: a ``.label``, ``.npy`` or ``.npz`` file with one label for each row of the scan,
          or for each row with a finite position. These labels replace labels inside the scan.
          A ``.label`` file also adds the attribute ``instance``.
      columns: the number of columns of a file without names (``.bin``, text, an array [N, k]),
          or the names of these columns, such as ``("x", "y", "z", "red", "green", "blue")`` or
          ``"x,y,z,red,green,blue"``. A column with the name ``_`` is left out.
      label_field: the name of the column or array with the labels, in the file `labels` if it
          is given, else in the scan. By default it is the first of
          :data:`voxax.io.columns.LABELS` with whole numbers.
      delimiter: the text between the columns of a text file; by default it is detected.
      item: the index of the cloud to read in a file of several (arrays [B, N, k], the scans of an
          ``.e57`` or ``.ptx``). By default all clouds are read, and the attribute ``item`` is the
          index of each point's cloud.
      points: the number of points to sample from the surface of a mesh; other files ignore it.
      seed: the random seed for sampling the surface of a mesh.

    Returns:
      The points, in the units and axes of the file.

    Raises:
      FileFormatError: a file is missing (then also a FileNotFoundError), empty, broken or of an
          unknown format; the number of labels differs from the number of points; or the number
          of columns is unclear; or the file has no cloud `item`.
      InputError: `points` is not in 1..2**27, `seed` or `item` is negative, one of them is not an
          integer, `columns` are no names or number, or `path` is too long.
      MissingExtraError: the library for this format is not installed.
    """
    found = existing_file(path)
    extension = extension_of(found)
    if labels is not None and _plain_end(Path(labels)) == PACKED_LABELS and columns is None:
        # A `.label` file belongs to a sweep of KITTI, so the columns of the .bin are known.
        # If this is wrong, the numbers of labels and points differ, which raises an error.
        columns = len(KITTI_FIELDS) if extension == ".bin" else None
    own = label_field if labels is None else None
    options = ReadOptions(checked_columns(columns), own, delimiter, item, points, seed)
    reader = READERS[extension.removesuffix(GZIP)]
    if reader not in READERS_OF_SEVERAL:
        chosen_items(item, 1, str(found))
    with unpacked(found) as plain:
        cloud = reader(plain, options)
    if plain != found:
        cloud = replace(cloud, source=str(found))
    finite = np.isfinite(cloud.positions)
    _check_reach(found, cloud.positions, finite)
    # Each row is checked only if some value is not finite, because this takes ten times as long.
    whole = bool(finite.all())
    finite = np.ones(len(cloud), bool) if whole else finite.all(axis=1)
    left = len(cloud) if whole else int(finite.sum())
    if left == 0:
        why = f": {len(cloud)} rows, none with a finite position" if len(cloud) else ""
        raise FileFormatError(f"{found} holds no points{why}")
    if labels is not None:
        values, attributes = read_labels_and_attributes(labels, label_field)
        if len(values) not in (len(cloud), left):
            raise FileFormatError(
                f"{len(values)} labels in {os.fspath(labels)} for {_counted(len(cloud), left)} "
                f"in {found}"
            )
        if len(values) == left:
            cloud, finite = cloud.select(finite), np.ones(left, bool)
        cloud = replace(cloud, labels=values, attributes=cloud.attributes | attributes)
    return cloud if left == len(cloud) else cloud.select(finite)


def _check_reach(found: Path, positions: np.ndarray, finite: np.ndarray) -> None:
    low, high = (end(positions, initial=0, where=finite) for end in (np.min, np.max))
    farthest = max(-float(low), float(high))
    if farthest > np.finfo(np.float32).max:
        raise FileFormatError(
            f"{found} has a position of {farthest:g}, beyond all numbers of float32: are its "
            "columns in another order, or of another type?"
        )


def _counted(rows: int, left: int) -> str:
    if rows == left:
        return f"{rows} points"
    return f"{rows} rows ({left} points with a finite position)"


def extension_of(path: Path) -> str:
    """Return the longest supported ending of a file's name, including ``.gz`` if it is there.

    The longest is needed because a nuScenes sweep (``.pcd.bin``) also ends in ``.bin``. If no
    ending is supported, FileFormatError is raised.
    """
    name = path.name.lower()
    packed = GZIP if name.endswith(GZIP) else ""
    fitting = [end + packed for end in READERS if name.endswith(end + packed)]
    if fitting:
        return max(fitting, key=len)
    suffix = _plain_end(path)
    if suffix in LABEL_READERS:
        raise FileFormatError(
            f"{path} holds labels, not points: read the scan and pass this as labels="
        )
    raise FileFormatError(
        f"cannot tell the format of {path}: its name ends in {suffix + packed or 'nothing'}, "
        f"known are {', '.join(readable_extensions())}, and each with {GZIP}"
    )


def _plain_end(path: Path) -> str:
    """Return a file's suffix in lower case; for ``scan.npy.gz`` this is ``.npy``."""
    return Path(path.name.lower().removesuffix(GZIP)).suffix


def read_labels(path: str | os.PathLike[str], label_field: str | None = None) -> np.ndarray:
    """Read the labels of a scan's points from a separate file.

    Args:
      path: a SemanticKITTI ``.label`` (only its raw class ids are returned), a ``.npy`` or a
          ``.npz`` file; each of these names may be followed by ``.gz``.
      label_field: the name of the array in the file. By default it is an array with a usual
          name for labels (:data:`voxax.io.columns.LABELS`), or the only array.

    Returns:
      The labels, int32 [N]; a missing label is -1.

    Raises:
      FileFormatError: the file is missing, broken or of another format.
    """
    return read_labels_and_attributes(path, label_field)[0]


def read_labels_and_attributes(
    path: str | os.PathLike[str], label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a file of labels: return the labels, int32 [N], and other attributes [N] by name.

    The only other attribute is ``instance``, the index of each point's object, if the file has it.
    The arguments and errors are those of :func:`read_labels`.
    """
    found = existing_file(path)
    reader = LABEL_READERS.get(_plain_end(found))
    if reader is None:
        raise FileFormatError(
            f"cannot read labels from {found}: its name ends in {found.suffix or 'nothing'}, "
            f"labels come from {', '.join(LABEL_READERS)}; save bare integers as .npy with "
            "np.save(..., np.fromfile(..., np.uint8)) (nuScenes; np.int64 for MMDetection3D)"
        )
    with unpacked(found) as plain:
        return reader(plain, label_field)
