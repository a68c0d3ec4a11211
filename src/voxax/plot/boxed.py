"""Groups of object boxes (detected boxes per class, true boxes) and their style in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxax.detection import Objects, corners
from voxax.errors import InputError
from voxax.plot.palette import class_colors

TRUE = "#1c2126"  # dashed; found boxes have a full line in the color of their class
# Pairs of corners of voxax.detection.corners: bottom edges, top edges, upright edges.
EDGES = np.array(
    [[i, (i + 1) % 4] for i in range(4)]
    + [[4 + i, 4 + (i + 1) % 4] for i in range(4)]
    + [[i, i + 4] for i in range(4)]
)


@dataclass(frozen=True)
class BoxKind:
    """A group of M boxes that are drawn in the same style.

    Attributes:
      name: the name of the group in legends.
      color: the color of the lines, "#rrggbb".
      is_true: whether these are ground-truth boxes, which are dashed, and not detected boxes.
      corners: [M, 8, 3] float, corners in meters, in the order of :func:`voxax.detection.corners`.
      scores: [M] float; NaN where a box has no score.
      labels: M names, the class of each box.
    """

    name: str
    color: str
    is_true: bool
    corners: np.ndarray
    scores: np.ndarray
    labels: tuple[str, ...]


def box_kinds(
    found: Objects | None,
    truth: Objects | None,
    class_names: Sequence[str],
    min_score: float = 0.0,
) -> list[BoxKind]:
    """Group the boxes to draw: a group of detected boxes per class, then one of true boxes.

    Detected boxes with a score below `min_score` and groups without boxes are left out.

    Raises:
      InputError: the class of a box is not in `class_names`.
    """
    kinds = []
    for objects in (found, truth):
        strange = [] if objects is None else sorted({*objects.classes.tolist()} - {*class_names})
        if strange:
            known = ", ".join(class_names)
            raise InputError(f"boxes of the class {strange[0]!r}; the names are {known}")
    if found is not None:
        scores = np.full(len(found), np.nan) if found.scores is None else found.scores
        for name, color in zip(class_names, class_colors(class_names), strict=True):
            mask = (found.classes == name) & ~(scores < min_score)
            if mask.any():
                kinds.append(_kind(f"found {name}", color, False, found, scores, mask))
    if truth is not None and len(truth):
        nothing = np.full(len(truth), np.nan)
        everything = np.ones(len(truth), bool)
        kinds.append(_kind("true", TRUE, True, truth, nothing, everything))
    return kinds


def dashed(lines: np.ndarray, step: float = 0.2) -> np.ndarray:
    """Cut M line segments [M, 2, 3] into dashes [K, 2, 3]; dashes and gaps are `step` m long."""
    pieces = [np.zeros((0, 2, 3))]
    for start, end in lines:
        length = float(np.linalg.norm(end - start))
        places = np.arange(0.0, max(length, 1e-9), 2 * step)
        ends = np.minimum(places + step, length)
        way = (end - start) / max(length, 1e-9)
        pieces.append(start + np.stack([places, ends], axis=1)[:, :, None] * way)
    return np.concatenate(pieces)


def _kind(
    name: str, color: str, is_true: bool, objects: Objects, scores: np.ndarray, mask: np.ndarray
) -> BoxKind:
    own = corners(objects.boxes[mask])
    names = tuple(str(label) for label in objects.classes[mask].tolist())
    return BoxKind(name, color, is_true, own, scores[mask], names)
