"""One LiDAR scan together with the true boxes of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxax.detection.objects import Objects
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True, eq=False)
class AnnotatedScan:
    """A scan and the true boxes of its objects, both in the same frame, whose z axis points up.

    `objects` has the boxes of all classes, even of those that no network learns, because the
    metrics of KITTI and nuScenes need them. For these two data sets it is an object of a subclass
    of ``Objects``. `about` is more data for an evaluation, such as KITTI's calibration or
    nuScenes' poses, or None.
    """

    cloud: PointCloud
    objects: Objects
    about: Any = None
