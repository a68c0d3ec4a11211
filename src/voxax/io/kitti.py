"""KITTI, SemanticKITTI and nuScenes sweeps, and the classes of SemanticKITTI.

Sweeps are bare little-endian float32 records without a header. Sources: the KITTI raw-data
development kit (``velodyne/*.bin``), the SemanticKITTI dataset page (``*.label``) and the
nuScenes schema (``*.pcd.bin``).

Source of the classes: the public configuration of the dataset (``semantic-kitti.yaml``; Behley et
al., "SemanticKITTI: A Dataset for Semantic Scene Understanding of LiDAR Sequences", 2019).
There, class 0 means "ignore" and the classes are 1..19; here they are 0..18, and -1
means "ignore", so that a model needs no output for points that never count.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError
from voxax.io.arrays import labels_from_arrays
from voxax.io.columns import POSITION, cloud_from_columns, named_rows
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud, as_labels
from voxax.io.records import check_magic, check_width, records

KITTI_FIELDS = ("x", "y", "z", "intensity")
NUSCENES_FIELDS = (*KITTI_FIELDS, "ring")
NO_RING = -1


def read_bin(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read float32 records without a header: of KITTI, or with the columns that are given.

    ``options.columns`` has the number of columns or their names, whose meaning
    :mod:`voxax.io.columns` says. Without it, these are KITTI's x, y, z (meters) and intensity,
    unless the numbers speak against it (:func:`voxax.io.records.check_width`).

    | data set | columns |
    |---|---|
    | KITTI, SemanticKITTI | ``x y z intensity`` |
    | nuScenes, Lyft | ``x y z intensity ring`` |
    | Waymo, as MMDetection3D stores it | ``x y z intensity elongation time`` |
    | ScanNet, S3DIS, SUN RGB-D, as MMDetection3D stores them | ``x y z red green blue`` |

    Raises:
        FileFormatError: the file is of another kind, the size is not a multiple of the record, or
            it is not clear how many columns there are.
    """
    check_magic(path)
    if options.columns is None:
        check_width(path, len(KITTI_FIELDS))
        columns = KITTI_FIELDS
    else:
        columns = options.columns
        if isinstance(columns, int):
            # What the columns mean is not guessed: a ring is as whole a number as a color.
            own = (f"column_{column}" for column in range(3, columns))
            columns = KITTI_FIELDS if columns == len(KITTI_FIELDS) else (*POSITION, *own)
    rows = records(path, "<f4", len(columns), "sweep")
    return cloud_from_columns(named_rows(rows, columns, str(path)), str(path), options.label_field)


def read_nuscenes(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a nuScenes ``.pcd.bin``: float32 x, y, z (meters), intensity and ring.

    The ring becomes int32, -1 where the file holds no number. ``options.columns`` has other
    columns, as for :func:`read_bin`.

    Raises:
        FileFormatError: the size is not a multiple of the 20-byte record.
    """
    if options.columns is not None:
        return read_bin(path, options)
    cloud = read_bin(path, replace(options, columns=NUSCENES_FIELDS))
    ring = cloud.attributes["ring"]
    # Written so that NaN fails it: casting NaN to an integer is undefined.
    usable = (ring >= 0) & (ring < np.iinfo(np.int16).max)
    rings = np.where(usable, ring, NO_RING).astype(np.int32)
    return replace(cloud, attributes=cloud.attributes | {"ring": rings})


def read_packed_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a SemanticKITTI ``.label``: uint32, low half the class, high half the object.

    `label_field` is ``semantic`` or ``instance``, the half to return as labels.

    Returns:
        The raw class ids, int32 [N] (see :func:`to_common_classes`), and
        ``{"instance": int32 [N]}``.

    Raises:
        FileFormatError: the size is not a multiple of 4 bytes, or there is no such field.
    """
    check_magic(path)
    packed = records(path, "<u4", 1, "SemanticKITTI label file")[:, 0]
    halves = {"semantic": packed & 0xFFFF, "instance": packed >> 16}
    return labels_from_arrays(halves, str(path), label_field)


IGNORED = -1

SEMANTIC_KITTI_CLASS_NAMES = (
    "car",
    "bicycle",
    "motorcycle",
    "truck",
    "other-vehicle",
    "person",
    "bicyclist",
    "motorcyclist",
    "road",
    "parking",
    "sidewalk",
    "other-ground",
    "building",
    "fence",
    "vegetation",
    "trunk",
    "terrain",
    "pole",
    "traffic-sign",
)

SEMANTIC_KITTI_LEARNING_MAP = {
    0: IGNORED,  # unlabeled
    1: IGNORED,  # outlier
    10: 0,  # car
    11: 1,  # bicycle
    13: 4,  # bus
    15: 2,  # motorcycle
    16: 4,  # on-rails
    18: 3,  # truck
    20: 4,  # other-vehicle
    30: 5,  # person
    31: 6,  # bicyclist
    32: 7,  # motorcyclist
    40: 8,  # road
    44: 9,  # parking
    48: 10,  # sidewalk
    49: 11,  # other-ground
    50: 12,  # building
    51: 13,  # fence
    52: IGNORED,  # other-structure
    60: 8,  # lane-marking
    70: 14,  # vegetation
    71: 15,  # trunk
    72: 16,  # terrain
    80: 17,  # pole
    81: 18,  # traffic-sign
    99: IGNORED,  # other-object
    252: 0,  # moving-car
    253: 6,  # moving-bicyclist
    254: 5,  # moving-person
    255: 7,  # moving-motorcyclist
    256: 4,  # moving-on-rails
    257: 4,  # moving-bus
    258: 3,  # moving-truck
    259: 4,  # moving-other-vehicle
}


def to_common_classes(raw: ArrayLike) -> np.ndarray:
    """Fold raw SemanticKITTI ids into the 19 benchmark classes.

    Args:
        raw: integers [N], the low 16 bits of a ``.label`` file, which is what
            :func:`voxax.io.read_labels` returns.

    Returns:
        int32 [N]: 0..18, an index into `SEMANTIC_KITTI_CLASS_NAMES`, or -1 for points
        that the benchmark ignores.

    Raises:
        InputError: an id is not one of the dataset's.
    """
    ids = as_labels(raw)
    present, where = np.unique(ids, return_inverse=True)
    unknown = [int(value) for value in present if int(value) not in SEMANTIC_KITTI_LEARNING_MAP]
    if unknown:
        raise InputError(
            f"{len(unknown)} ids are not SemanticKITTI's: {unknown[:8]}; its raw ids are "
            f"{sorted(SEMANTIC_KITTI_LEARNING_MAP)}"
        )
    table = np.array([SEMANTIC_KITTI_LEARNING_MAP[int(value)] for value in present], np.int32)
    return table[where]
