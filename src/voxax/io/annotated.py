"""One LiDAR scan together with the true boxes of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxax.detection.objects import Objects
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True, eq=False)
class AnnotatedScan:
    """A scan and the true boxes of its objects, both in the same frame, whose z axis points up.

    `objects` has the boxes of all classes, because the metrics of KITTI and nuScenes also need the
    classes that no network learns. These data sets use subclasses of ``Objects``. `about` is
    more data for an evaluation, such as KITTI's calibration or nuScenes' poses; None if none.
    """

    cloud: PointCloud
    objects: Objects
    about: Any = None
