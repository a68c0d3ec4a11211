"""Scans with the boxes of what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxax.detection.objects import Objects
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True, eq=False)
class AnnotatedScan:
    """A scan and its true boxes, both in the frame of the scanner: x, y in the plan, z up.

    All boxes are there, also of classes that nobody asks for: the metrics of KITTI and nuScenes
    need them, in their own kinds of objects. `about` is what an evaluation needs beside, such as
    KITTI's calibration or nuScenes' pose in the vehicle.
    """

    cloud: PointCloud
    objects: Objects
    about: Any = None
