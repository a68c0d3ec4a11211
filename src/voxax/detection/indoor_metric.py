"""Average precision by intersection over union, the metric of ScanNet and SUN RGB-D."""

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
    """Return the average precision of each class by IoU, in 0..1, as for ScanNet and SUN RGB-D.

    The mean over the classes is the mAP of the data set. The found boxes of a class are visited by
    falling score. A found box is compared with the true box of its scene and class that it overlaps
    most. It is right if the overlap exceeds the threshold, and no earlier box matched this true
    box. The average precision is the area under the curve of precision over recall, after each
    precision was raised to the highest at the same or a greater recall (VOC 2010). The boxes of
    ScanNet are not rotated: give a yaw of 0.

    Args:
      truth: the true boxes of each scene.
      found: the boxes found in each scene, with scores.
      iou_threshold: intersection over union that a right box must exceed, at least 0 and below 1;
        0.25 and 0.5 are usual.
      overlap: ``"3d"`` compares volumes, ``"bev"`` compares areas seen from above.
      classes: the classes to evaluate; None evaluates all classes of ``truth``.

    Returns:
      A dict from each class to its average precision; NaN for a class without true boxes.

    Raises:
      InputError: ``truth`` and ``found`` have different numbers of scenes, found boxes have no
        scores, or the threshold is out of range.
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
