"""One LiDAR scan together with the true boxes of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxax.detection.objects import Objects
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True, eq=False)
class AnnotatedScan:
    """A LiDAR scan and the true boxes of its objects, both in a frame whose z axis points up.

    `cloud` has the points. `objects` has the boxes of all classes, even of classes that no network
    learns, because the metrics of KITTI and nuScenes need all boxes. For these two data sets,
    `objects` is a ``KittiObjects`` or a ``NuscenesObjects``, which are subclasses of ``Objects``.
    `about` has further data for an evaluation, such as KITTI's calibration or nuScenes' poses. It
    is None if a data set has no such data.
    """

    cloud: PointCloud
    objects: Objects
    about: Any = None
