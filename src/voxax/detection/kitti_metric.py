"""KITTI's average precision at 40 recalls, for three difficulties.

Source: Geiger, Lenz and Urtasun, "Are we ready for Autonomous Driving? The KITTI Vision Benchmark
Suite", CVPR 2012, and the program of its development kit, whose comparisons are these: a true box
exactly at a limit of height, occlusion or truncation counts, an overlap has to be larger than its
limit. (Copies in Python have ``<=`` for the height.) 40 recalls: Simonelli et al., "Disentangling
Monocular 3D Object Detection", ICCV 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from voxax.detection.objects import Objects, check_scenes
from voxax.detection.overlap import bev_iou, iou_3d
from voxax.errors import InputError, check_known

KittiOverlap = Literal["3d", "bev", "image"]
KITTI_OVERLAPS = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}
NEIGHBORS = {"car": "van", "pedestrian": "person_sitting"}
NO_CARE = "dontcare"
NUM_RECALLS = 40
# Of a row in one comparison: it counts; it neither helps nor harms; it takes no part.
COUNTS, IGNORED, ABSENT = 0, 1, 2


@dataclass(frozen=True)
class _Difficulty:
    name: str
    height: float  # in the image, in pixels
    occlusion: int
    truncation: float


DIFFICULTIES = (
    _Difficulty("easy", 40, 0, 0.15),
    _Difficulty("moderate", 25, 1, 0.30),
    _Difficulty("hard", 25, 2, 0.50),
)


@dataclass(frozen=True)
class KittiObjects(Objects):
    """Boxes of one frame, in any frame of reference whose z axis points up.

    Args:
      boxes: ``[N, 7]``; what stands in rows of ``DontCare`` has no meaning.
      classes: ``[N]``, names as in KITTI's label files; upper and lower case are the same.
      scores: ``[N]``, of what was found; None for the truth.
      rectangles: ``[N, 4]``, left, top, right and bottom in the image, in pixels.
      truncation: ``[N]`` in 0..1, of the truth; None for 0.
      occlusion: ``int[N]``, 0 to 3, of the truth; None for 0.

    Raises:
      InputError: other shapes, bad boxes, or scores that are not finite.
    """

    rectangles: Any = None
    truncation: Any = None
    occlusion: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        number = len(self)
        rectangles = np.zeros((0, 4)) if self.rectangles is None else self.rectangles
        rectangles = np.array(rectangles, np.float64).reshape(-1, 4)
        if len(rectangles) != number:
            raise InputError(
                f"{len(rectangles)} rectangles for {number} boxes: give [{number}, 4], left, top, "
                "right and bottom in pixels, by which KITTI tells how difficult a box is"
            )
        object.__setattr__(self, "rectangles", rectangles)
        for name in ("truncation", "occlusion"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros(number))
            self._set(name, number)

    def names(self) -> np.ndarray:
        """Return the classes in lower case, ``[N]``."""
        return np.array([str(name).lower() for name in self.classes.tolist()], dtype=object)

    def heights(self) -> np.ndarray:
        """Return the heights in the image in pixels, ``[N]``."""
        return self.rectangles[:, 3] - self.rectangles[:, 1]

    def _is_boxed(self) -> np.ndarray:
        return self.names() != NO_CARE


def kitti_ap(
    truth: Sequence[KittiObjects],
    found: Sequence[KittiObjects],
    *,
    overlap: KittiOverlap = "3d",
    overlaps: Mapping[str, float] | None = None,
) -> dict[str, dict[str, float]]:
    """Return KITTI's average precision at 40 recalls by class and difficulty, 0..1.

    KITTI's tables show it times 100.

    Args:
      truth: of each frame, all rows of the label file, also ``DontCare`` and other classes.
      found: of each frame, with scores.
      overlap: IoU of volumes (``"3d"``), from above (``"bev"``), or of rectangles in the image.
      overlaps: the IoU that each class to evaluate needs; None for KITTI's: 0.7 for cars, 0.5 for
        pedestrians and cyclists.

    Returns:
      Values for ``easy``, ``moderate`` and ``hard`` by class; NaN without true boxes.

    Raises:
      InputError: frames that differ in number, no scores, an unknown overlap or one out of range.
    """
    check_scenes(truth, found, KittiObjects)
    check_known("overlap", overlap, get_args(KittiOverlap))
    needed = KITTI_OVERLAPS if overlaps is None else dict(overlaps)
    for name, value in needed.items():
        if not 0 < value < 1:
            raise InputError(f"overlaps[{name!r}]={value} must lie between 0 and 1")
    shared = [_overlaps(t, f, overlap) for t, f in zip(truth, found, strict=True)]
    return {
        name: {
            level.name: _of_class(truth, found, shared, name, level, value, overlap == "image")
            for level in DIFFICULTIES
        }
        for name, value in needed.items()
    }


@dataclass
class _Frame:
    """One frame of a comparison; rows that take no part are left out."""

    iou: np.ndarray  # [found, truth]
    scores: np.ndarray
    true_state: np.ndarray
    found_state: np.ndarray
    no_care: np.ndarray  # [found], the largest part of each in a DontCare rectangle


def _of_class(
    truth: Sequence[KittiObjects],
    found: Sequence[KittiObjects],
    shared: Sequence[np.ndarray],
    name: str,
    level: _Difficulty,
    needed: float,
    in_image: bool,
) -> float:
    frames = [
        _frame(*frame, name.lower(), level, in_image)
        for frame in zip(truth, found, shared, strict=True)
    ]
    number = sum(int(np.sum(frame.true_state == COUNTS)) for frame in frames)
    if number == 0:
        return float("nan")
    scores = np.concatenate([_match(frame, needed, None)[0] for frame in frames])
    precision = np.zeros(NUM_RECALLS + 1)
    for place, threshold in enumerate(_thresholds(scores, number)):
        right = wrong = 0
        for frame in frames:
            hits, false = _match(frame, needed, threshold)
            right, wrong = right + len(hits), wrong + false
        precision[place] = right / max(right + wrong, 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.mean(highest[1:]))


def _frame(
    truth: KittiObjects,
    found: KittiObjects,
    iou: np.ndarray,
    name: str,
    level: _Difficulty,
    in_image: bool,
) -> _Frame:
    names = truth.names()
    is_hard = truth.occlusion > level.occlusion
    is_hard |= truth.truncation > level.truncation
    is_hard |= truth.heights() < level.height
    true_state = np.where(names == name, np.where(is_hard, IGNORED, COUNTS), ABSENT)
    true_state[names == NEIGHBORS.get(name)] = IGNORED
    found_state = np.where(found.names() == name, COUNTS, ABSENT)
    found_state[np.abs(found.heights()) < level.height] = IGNORED
    no_care = np.zeros(len(found))
    rectangles = truth.rectangles[names == NO_CARE]
    if in_image and len(rectangles) and len(found):
        area = _areas(found.rectangles)[:, None]
        part = _shared_rectangles(found.rectangles, rectangles) / np.where(area > 0, area, 1.0)
        no_care = part.max(axis=1)
    mine, theirs = found_state != ABSENT, true_state != ABSENT
    return _Frame(
        iou[np.ix_(mine, theirs)],
        found.scores[mine],
        true_state[theirs],
        found_state[mine],
        no_care[mine],
    )


def _match(frame: _Frame, needed: float, threshold: float | None) -> tuple[list[float], int]:
    """Return the scores of the boxes that are right, and the number of those that are wrong.

    Without a threshold each true box takes the highest score, with one the largest overlap, and
    what is ignored last; each found box is taken once.
    """
    is_free = np.ones(len(frame.scores), bool)
    if threshold is not None:
        is_free = frame.scores >= threshold
    counts = frame.found_state == COUNTS
    hits = []
    for column, state in enumerate(frame.true_state):
        iou = frame.iou[:, column]
        able = np.flatnonzero(is_free & (iou > needed))
        if not len(able):
            continue
        if threshold is None:
            best = able[np.argmax(frame.scores[able])]
        elif counts[able].any():
            able = able[counts[able]]
            best = able[np.argmax(iou[able])]
        else:
            best = able[0]
        is_free[best] = False
        if state == COUNTS and counts[best]:
            hits.append(float(frame.scores[best]))
    return hits, int(np.sum(is_free & counts & ~(frame.no_care > needed)))


def _thresholds(scores: np.ndarray, number: int) -> list[float]:
    """Return the scores at which recall is nearest to 0, 1/40, 2/40 and so on."""
    scores = np.sort(scores)[::-1]
    chosen: list[float] = []
    recall = 0.0
    for place, score in enumerate(scores):
        here = (place + 1) / number
        is_last = place == len(scores) - 1
        after = here if is_last else (place + 2) / number
        if after - recall < recall - here and not is_last:
            continue
        chosen.append(float(score))
        recall += 1 / NUM_RECALLS
    return chosen


def _overlaps(truth: KittiObjects, found: KittiObjects, overlap: KittiOverlap) -> np.ndarray:
    if overlap == "image":
        shared = _shared_rectangles(found.rectangles, truth.rectangles)
        union = _areas(found.rectangles)[:, None] + _areas(truth.rectangles)[None] - shared
        return np.where(union > 0, shared / np.where(union > 0, union, 1.0), 0.0)
    iou = np.zeros((len(found), len(truth)))
    mine, theirs = found._is_boxed(), truth._is_boxed()
    measure = iou_3d if overlap == "3d" else bev_iou
    iou[np.ix_(mine, theirs)] = measure(found.boxes[mine][:, None], truth.boxes[theirs][None])
    return iou


def _shared_rectangles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return np.prod(np.maximum(high - low, 0.0), axis=-1)


def _areas(rectangles: np.ndarray) -> np.ndarray:
    return np.prod(rectangles[:, 2:] - rectangles[:, :2], axis=1)
