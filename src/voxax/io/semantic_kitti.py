"""The classes of SemanticKITTI, and how its raw ids fold into the 19 of its benchmark.

Source: the public configuration of the dataset (``semantic-kitti.yaml``; Behley et al.,
"SemanticKITTI: A Dataset for Semantic Scene Understanding of LiDAR Sequences", 2019).
There, class 0 means "ignore" and the classes are 1..19; here they are 0..18, and -1
means "ignore", so that a model needs no output for points that never count.
"""

import numpy as np
from numpy.typing import ArrayLike

from voxax.errors import InputError
from voxax.io.point_cloud import as_labels

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
