"""Data augmentation of a scene in NumPy: move boxes together with their points, and paste objects.

Points are ``[N, 3]`` or more columns, of which the first three change. Boxes are ``[M, 7]``, or
``[M, 9]`` with a velocity, which is rotated and scaled too. Points and boxes keep their dtype.

:class:`ObjectBank` stores objects cut out of scenes, and adds them to other scenes where there is
room. Source: Yan, Mao and Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from voxax._array_types import Num
from voxax.detection.boxes import (
    as_boxes,
    check_numbers,
    check_rows,
    check_table,
    points_in_boxes,
    wrap_angle,
)
from voxax.detection.overlap import bev_overlap
from voxax.errors import InputError

Scene = tuple[np.ndarray, np.ndarray]


def flip(points: Num[np.ndarray, "N columns"], boxes: Num[np.ndarray, "M box"], axis: int) -> Scene:
    """Return points and boxes mirrored: the coordinates along x, or those along y, are negated.

    Args:
      points: ``[N, 3]`` or more columns.
      boxes: ``[M, 7]`` or ``[M, 9]``.
      axis: 0 negates x, 1 negates y.

    Raises:
      InputError: wrong shapes, invalid boxes, or ``axis`` is not 0 or 1.
    """
    _check_axis(axis)
    points, boxes = _copies(points, boxes)
    points[:, axis] *= -1
    boxes[:, axis] *= -1
    boxes[:, 7 + axis : 8 + axis] *= -1
    boxes[:, 6] = wrap_angle(-boxes[:, 6] + (np.pi if axis == 0 else 0.0))
    return points, boxes


def rotate(
    points: Num[np.ndarray, "N columns"], boxes: Num[np.ndarray, "M box"], angle: float
) -> Scene:
    """Return points and boxes rotated about the z axis.

    Args:
      points: ``[N, 3]`` or more columns.
      boxes: ``[M, 7]`` or ``[M, 9]``.
      angle: angle of the rotation in radians, from x to y.

    Raises:
      InputError: wrong shapes, invalid boxes, or an angle that is not finite.
    """
    (angle,) = check_numbers("angle", [angle], 1)
    points, boxes = _copies(points, boxes)
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = np.array([[cos, sin], [-sin, cos]])
    points[:, :2] = points[:, :2] @ matrix
    boxes[:, :2] = boxes[:, :2] @ matrix
    if boxes.shape[1] == 9:
        boxes[:, 7:] = boxes[:, 7:] @ matrix
    boxes[:, 6] = wrap_angle(boxes[:, 6] + angle)
    return points, boxes


def scale(
    points: Num[np.ndarray, "N columns"], boxes: Num[np.ndarray, "M box"], factor: float
) -> Scene:
    """Return points, boxes and velocities scaled about the origin by a factor.

    Args:
      points: ``[N, 3]`` or more columns.
      boxes: ``[M, 7]`` or ``[M, 9]``.
      factor: the factor, above 0.

    Raises:
      InputError: wrong shapes, invalid boxes, or a factor that is not positive.
    """
    if not 0 < factor < math.inf:
        raise InputError(f"factor={factor} must be positive and finite")
    points, boxes = _copies(points, boxes)
    points[:, :3] *= factor
    boxes[:, :6] *= factor
    boxes[:, 7:] *= factor
    return points, boxes


def translate(
    points: Num[np.ndarray, "N columns"], boxes: Num[np.ndarray, "M box"], offset: Sequence[float]
) -> Scene:
    """Return points and boxes moved by an offset.

    Args:
      points: ``[N, 3]`` or more columns.
      boxes: ``[M, 7]`` or ``[M, 9]``.
      offset: the offset along x, y and z, in meters.

    Raises:
      InputError: wrong shapes, invalid boxes, or an offset that is not three finite numbers.
    """
    step = np.array(check_numbers("offset", offset, 3))
    points, boxes = _copies(points, boxes)
    points[:, :3] += step.astype(points.dtype)
    boxes[:, :3] += step.astype(boxes.dtype)
    return points, boxes


def augment(
    points: Num[np.ndarray, "N columns"],
    boxes: Num[np.ndarray, "M box"],
    rng: np.random.Generator,
    *,
    flips: Sequence[int] = (0, 1),
    max_angle: float = math.pi / 4,
    scales: tuple[float, float] = (0.95, 1.05),
    offset_sigma: float | Sequence[float] = 0.0,
) -> Scene:
    """Return points and boxes after random flips, then a rotation, a scaling and a shift.

    Args:
      points: ``[N, 3]`` or more columns.
      boxes: ``[M, 7]`` or ``[M, 9]``.
      rng: generator of the random numbers.
      flips: axes to mirror (0 for x, 1 for y), each with probability 1/2.
      max_angle: largest angle of the rotation in radians, which is drawn uniformly from
        ``-max_angle`` to ``max_angle``.
      scales: smallest and largest factor of the scaling, which is drawn uniformly.
      offset_sigma: standard deviation of the shift in meters, one for all axes or ``[3]``.

    Raises:
      InputError: wrong shapes, invalid boxes, a number out of range, or ``rng`` is no generator.
    """
    low, high = scales
    if not 0 < low <= high < math.inf:
        raise InputError(f"scales={scales} must satisfy 0 < low <= high")
    if not 0 <= max_angle < math.inf:
        raise InputError(f"max_angle={max_angle} must be at least 0 and finite")
    sigma = np.broadcast_to(np.asarray(offset_sigma, np.float64), (3,))
    if not ((sigma >= 0) & np.isfinite(sigma)).all():
        raise InputError(f"offset_sigma={offset_sigma} must be at least 0 and finite")
    for axis in flips:
        _check_axis(axis)
    _check_generator(rng)
    points, boxes = _copies(points, boxes)
    for axis in flips:
        if rng.random() < 0.5:
            points, boxes = flip(points, boxes, axis)
    points, boxes = rotate(points, boxes, rng.uniform(-max_angle, max_angle))
    points, boxes = scale(points, boxes, rng.uniform(low, high))
    return translate(points, boxes, rng.normal(0.0, sigma).tolist())


def _check_axis(axis: int) -> None:
    if axis not in (0, 1):
        raise InputError(f"axis={axis}: give 0 to mirror x, or 1 to mirror y")


def _check_generator(rng: object) -> None:
    if not isinstance(rng, np.random.Generator):
        raise InputError(
            f"rng={rng!r:.80} must be a numpy.random.Generator: make one with "
            "numpy.random.default_rng(seed)"
        )


def _copies(points: Any, boxes: Any) -> Scene:
    """Return copies of points and boxes as floating-point arrays; raise InputError if invalid."""
    points, boxes = check_points(points), np.array(as_boxes(np.asarray(boxes)))
    check_table(boxes)
    return np.array(points), boxes


def check_points(points: Any) -> np.ndarray:
    """Return points as floats; raise :class:`voxax.InputError` unless they are ``[N, 3+]``."""
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] < 3:
        raise InputError(f"points of shape {list(points.shape)}: give [N, 3], or more columns")
    return points if points.dtype.kind == "f" else points.astype(np.float64)


class CutOut(NamedTuple):
    """An object that was cut out of a scene.

    Attributes:
      box: ``[7]`` or ``[9]``, its box in that scene.
      points: ``[n, 3]`` or more columns, its points in that scene.
    """

    box: np.ndarray
    points: np.ndarray


@dataclass
class ObjectBank:
    """Stock of objects cut out of scenes, to paste into other scenes (NumPy, can be pickled).

    Args:
      min_points: least number of points of an object; :meth:`add` leaves out smaller objects.
      objects: dict from class to the stored objects of the class.
    """

    min_points: int = 5
    objects: dict[Any, list[CutOut]] = field(default_factory=dict)

    def add(self, points: Any, boxes: Any, classes: Any) -> None:
        """Cut the objects out of a scene, and add them to the bank.

        Args:
          points: ``[N, 3]`` or more columns.
          boxes: ``[M, 7]`` or ``[M, 9]``.
          classes: ``[M]``, names or numbers.

        Raises:
          InputError: wrong shapes, invalid boxes, or other numbers of columns than in the bank.
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
        """Paste objects of the bank into a scene, up to a given number of boxes of each class.

        An object is added where it was cut out. It is left out if its box, seen from above,
        overlaps a box of the scene or of an object added before. Points of the scene that lie in
        the new boxes are removed.

        Args:
          points: ``[N, 3]`` or more columns.
          boxes: ``[M, 7]`` or ``[M, 9]``.
          classes: ``[M]``, names or numbers.
          rng: generator that draws the objects, each at most once.
          counts: dict from class to the number of boxes that the scene should have.

        Returns:
          Points, boxes and classes of the new scene; the rows of the added objects come last.

        Raises:
          InputError: wrong shapes, invalid boxes, a class without objects in the bank, other
            numbers of columns than in the bank, or ``rng`` is no generator.
        """
        _check_generator(rng)
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
        # The dtype of empty `classes` has no meaning. New names keep their own string width.
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
