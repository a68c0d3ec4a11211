"""Ground-truth sampling: objects cut out of scenes, and put into others where there is room.

Source: Yan, Mao and Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from voxax.detection.augmentation import check_points
from voxax.detection.boxes import as_boxes, check_rows, check_table, points_in_boxes
from voxax.detection.overlap import bev_overlap
from voxax.errors import InputError


class CutOut(NamedTuple):
    """One object.

    Attributes:
      box: ``[7]`` or ``[9]``, where it was.
      points: ``[n, 3]`` or more columns, where they were.
    """

    box: np.ndarray
    points: np.ndarray


@dataclass
class ObjectBank:
    """Objects by class, on the host. It can be pickled, so worker processes can have it.

    Args:
      min_points: objects with fewer points are not kept.
    """

    min_points: int = 5
    objects: dict[Any, list[CutOut]] = field(default_factory=dict)

    def add(self, points: Any, boxes: Any, classes: Any) -> None:
        """Keep the objects of a scene.

        Args:
          points: ``[N, 3]`` or more columns.
          boxes: ``[M, 7]`` or ``[M, 9]``.
          classes: ``[M]``, names or numbers.

        Raises:
          InputError: other shapes, bad boxes, other numbers of columns than before.
        """
        points, boxes, classes = _checked(points, boxes, classes)
        self._check_columns(points, boxes)
        inside = points_in_boxes(points, boxes)
        for box, name, mine in zip(boxes, classes.tolist(), inside.T, strict=True):
            if mine.sum() >= self.min_points:
                self.objects.setdefault(name, []).append(CutOut(box.copy(), points[mine]))

    def fill(
        self, points: Any, boxes: Any, classes: Any, rng: np.random.Generator, counts: Mapping
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a scene with objects added, up to so many of each class, where there is room.

        Objects come to where they were cut out, but for those that would share area from above with
        a box of the scene or with one that was added before. What points of the scene lie in their
        boxes go.

        Args:
          points: ``[N, 3]`` or more columns.
          boxes: ``[M, 7]`` or ``[M, 9]``.
          classes: ``[M]``, names or numbers.
          rng: draws the objects, each at most once.
          counts: how many boxes of each class the scene should have.

        Returns:
          Points, boxes and classes; the new ones come last.

        Raises:
          InputError: other shapes, bad boxes, a class without objects, other numbers of columns
            than of the objects.
        """
        points, boxes, classes = _checked(points, boxes, classes)
        self._check_columns(points, boxes)
        added: list[CutOut] = []
        names: list[Any] = []
        taken = boxes
        for name, count in counts.items():
            if name not in self.objects:
                raise InputError(
                    f"no objects of class {name!r}, known: {sorted(map(str, self.objects))}: add "
                    f"scenes that have some with at least {self.min_points} points"
                )
            stock = self.objects[name]
            missing = min(max(0, count - int(np.sum(classes == name))), len(stock))
            for place in rng.choice(len(stock), missing, replace=False):
                box = stock[place].box.astype(boxes.dtype)[None]
                if len(taken) and (bev_overlap(box, taken) > 0).any():
                    continue
                taken = np.concatenate([taken, box])
                added.append(stock[place])
                names.append(name)
        if not added:
            return points, boxes, classes
        new = taken[len(boxes) :]
        kept = points[~points_in_boxes(points, new).any(axis=1)]
        more = [one.points.astype(points.dtype) for one in added]
        # An empty array has a dtype that nobody chose, and names keep their own width.
        new_classes = np.array(names)
        together = np.concatenate([classes, new_classes]) if len(classes) else new_classes
        return np.concatenate([kept, *more]), taken, together

    def _check_columns(self, points: np.ndarray, boxes: np.ndarray) -> None:
        known = next((one for stock in self.objects.values() for one in stock), None)
        if known is None:
            return
        for name, given, had in (
            ("points", points.shape[1], known.points.shape[1]),
            ("boxes", boxes.shape[1], known.box.shape[0]),
        ):
            if given != had:
                raise InputError(
                    f"{name} with {given} columns, and objects in the bank with {had}: give all "
                    "scenes the same columns"
                )


def _checked(points: Any, boxes: Any, classes: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points, boxes, classes = check_points(points), as_boxes(np.asarray(boxes)), np.asarray(classes)
    check_table(boxes)
    check_rows("classes", classes, len(boxes), "boxes")
    return points, boxes, classes
