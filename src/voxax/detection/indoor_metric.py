"""Average precision by intersection over union, as indoor data sets have it: ScanNet, SUN RGB-D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from voxax.detection.objects import Objects, check_scenes
from voxax.detection.overlap import NmsOverlap, bev_iou, iou_3d
from voxax.errors import InputError, check_known


def average_precision(
    truth: Sequence[Objects],
    found: Sequence[Objects],
    *,
    iou_threshold: float = 0.25,
    overlap: NmsOverlap = "3d",
    classes: Sequence[Any] | None = None,
) -> dict[Any, float]:
    """Return the average precision of each class, 0..1; their mean is the data set's mAP.

    By falling score, a box is right if the true box of its scene and class that it overlaps most is
    overlapped by more than the threshold, and was not found before. The average is the area under
    the curve of precision over recall, after each precision was raised to the highest after it
    (VOC 2010). ScanNet's boxes are not turned: give a yaw of 0.

    Args:
      truth: true boxes of each scene.
      found: boxes found in each scene, with scores.
      iou_threshold: 0.25 and 0.5 are usual.
      overlap: ``"3d"`` compares volumes, ``"bev"`` areas seen from above.
      classes: to evaluate; None for those of the truth.

    Returns:
      Values by class; NaN for a class without true boxes.

    Raises:
      InputError: scenes that differ in number, no scores, a threshold out of range.
    """
    check_scenes(truth, found, Objects)
    check_known("overlap", overlap, get_args(NmsOverlap))
    if not 0 <= iou_threshold < 1:
        raise InputError(f"iou_threshold={iou_threshold} must be at least 0 and below 1")
    if classes is None:
        classes = sorted({one for scene in truth for one in scene.classes.tolist()})
    measure = iou_3d if overlap == "3d" else bev_iou
    return {one: _of_class(truth, found, one, iou_threshold, measure) for one in classes}


def _of_class(
    truth: Sequence[Objects], found: Sequence[Objects], name: Any, threshold: float, measure: Any
) -> float:
    number = sum(int(np.sum(scene.classes == name)) for scene in truth)
    if number == 0:
        return float("nan")
    scores, is_right = [np.zeros(0)], [np.zeros(0, bool)]
    for true, guess in zip(truth, found, strict=True):
        mine, theirs = guess.classes == name, true.classes == name
        order = np.argsort(-guess.scores[mine], kind="stable")
        scores.append(guess.scores[mine][order])
        right = np.zeros(len(order), bool)
        if theirs.any() and len(order):
            iou = measure(guess.boxes[mine][order][:, None], true.boxes[theirs][None])
            best, value = iou.argmax(axis=1), iou.max(axis=1)
            candidates = np.flatnonzero(value > threshold)
            # Scenes share no true box, so the first by score in its scene is the first of all.
            right[candidates[np.unique(best[candidates], return_index=True)[1]]] = True
        is_right.append(right)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    right = np.concatenate(is_right)[order]
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(hits) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(highest[right]) / number)
