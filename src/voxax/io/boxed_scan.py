"""Scans with boxes of their objects: what detectors learn from, and what readers of them return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from voxax.detection import Objects, points_in_boxes
from voxax.detection.boxes import check_rows
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True, eq=False)
class BoxedScan:
    """A point cloud and the objects in it, in the same axes.

    Args:
      cloud: the points.
      objects: boxes with the names of their classes; scores only where they were found.
      num_points: ``int[N]``, how many points were measured on each object; None counts those in
        its box.

    Raises:
      InputError: another number of counts than boxes.
    """

    cloud: PointCloud
    objects: Objects
    num_points: Any = None

    def __post_init__(self) -> None:
        counts = self.num_points
        if counts is None:
            # Box by box: all points with all boxes would take gigabytes for a large scan.
            boxes, points = self.objects.boxes[:, None], self.cloud.positions
            counts = [int(points_in_boxes(points, box).sum()) for box in boxes]
        counts = np.asarray(counts, np.int64)
        check_rows("num_points", counts, len(self.objects), "boxes")
        object.__setattr__(self, "num_points", counts)

    def __len__(self) -> int:
        return len(self.cloud)

    def select_objects(self, mask: Any) -> BoxedScan:
        """Return the scan with some of the objects.

        Args:
          mask: ``bool[N]``, or integers ``[M]``, which objects.
        """
        own = self.objects
        scores = None if own.scores is None else own.scores[mask]
        kept = Objects(own.boxes[mask], own.classes[mask], scores)
        return replace(self, objects=kept, num_points=self.num_points[mask])

    def near(self, radius: float) -> BoxedScan:
        """Return what lies within ``radius`` meters of the origin in the plane: points, and boxes
        by their centers."""
        inside = [
            np.hypot(places[:, 0], places[:, 1]) < radius
            for places in (self.cloud.positions, self.objects.boxes)
        ]
        return replace(self.select_objects(inside[1]), cloud=self.cloud.select(inside[0]))
