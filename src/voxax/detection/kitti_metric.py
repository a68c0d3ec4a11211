"""KITTI's average precision and orientation similarity, for three difficulties.

Source: Geiger, Lenz and Urtasun, "Are we ready for Autonomous Driving? The KITTI Vision Benchmark
Suite", CVPR 2012, and the program of its development kit. As in this program, a true box exactly at
a limit of height, occlusion or truncation counts, and an overlap must be larger than its limit.
(Python copies of the program compare the height by ``<=``.) The 40 recalls are from Simonelli et
al., "Disentangling Monocular 3D Object Detection", ICCV 2019; earlier, the benchmark had 11.
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
KittiRecalls = Literal[40, 11]
KITTI_OVERLAPS = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}
NEIGHBORS = {"car": "van", "pedestrian": "person_sitting"}
NO_CARE = "dontcare"
NUM_RECALLS = 40
# The precisions to average, of 41, by the number of recalls; 11 recalls include recall 0.
COUNTED = {40: slice(1, None), 11: slice(0, None, 4)}
# State of a box in a comparison: it counts; it is matched but changes no result; it is left out.
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
    """True or found boxes of one KITTI frame, in any coordinate system whose z axis points up.

    Args:
      boxes: ``[N, 7]``; the values in rows of class ``DontCare`` have no effect.
      classes: ``[N]``, names as in KITTI's label files; upper and lower case are the same.
      scores: ``[N]``, scores of found boxes; None for true boxes.
      rectangles: ``[N, 4]``, left, top, right and bottom of the boxes in the image, in pixels.
      truncation: ``[N]``, truncation of true boxes in 0..1; None is 0.
      occlusion: ``int[N]``, occlusion of true boxes, 0 to 3; None is 0.
      alphas: ``[N]``, angles of observation in radians, for :func:`kitti_aos`; None if unknown.

    Raises:
      InputError: wrong shapes, invalid boxes, or scores that are not finite.
    """

    rectangles: Any = None
    truncation: Any = None
    occlusion: Any = None
    alphas: Any = None

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
        if self.alphas is not None:
            self._set("alphas", number, np.float64)

    def names(self) -> np.ndarray:
        """Return the class names in lower case, ``[N]``."""
        return np.array([str(name).lower() for name in self.classes.tolist()], dtype=object)

    def heights(self) -> np.ndarray:
        """Return the heights of the boxes in the image, ``[N]`` in pixels."""
        return self.rectangles[:, 3] - self.rectangles[:, 1]

    def _is_boxed(self) -> np.ndarray:
        return self.names() != NO_CARE


def kitti_ap(
    truth: Sequence[KittiObjects],
    found: Sequence[KittiObjects],
    *,
    overlap: KittiOverlap = "3d",
    overlaps: Mapping[str, float] | None = None,
    recalls: KittiRecalls = 40,
) -> dict[str, dict[str, float]]:
    """Return KITTI's average precision by class and difficulty, in 0..1 (KITTI shows percent).

    Args:
      truth: all rows of each frame's label file, including ``DontCare`` and other classes.
      found: boxes found in each frame, with scores.
      overlap: measure of overlap: IoU of volumes (``"3d"``), of areas from above (``"bev"``), or of
        rectangles in the image (``"image"``).
      overlaps: dict from each class to evaluate to the IoU that a found box must exceed. None takes
        KITTI's values: 0.7 for cars, 0.5 for pedestrians and cyclists.
      recalls: number of recalls to average over: 40, as in KITTI since 2019, or 11, as in older
        tables.

    Returns:
      A dict from class to a dict with the keys ``easy``, ``moderate`` and ``hard``; the value is
      NaN if there are no true boxes.

    Raises:
      InputError: different numbers of frames, no scores, an unknown ``overlap``, ``overlaps`` out
        of range, or another number of recalls.
    """
    return _by_class(truth, found, overlap, overlaps, recalls, oriented=False)


def kitti_aos(
    truth: Sequence[KittiObjects],
    found: Sequence[KittiObjects],
    *,
    overlaps: Mapping[str, float] | None = None,
    recalls: KittiRecalls = 40,
) -> dict[str, dict[str, float]]:
    """Return KITTI's average orientation similarity by class and difficulty, in 0..1.

    It is the average precision of rectangles in the image, in which a correct box counts
    ``(1 + cos(d)) / 2``, where d is the difference of the angles of observation.

    Args:
      truth, found, overlaps, recalls: as in :func:`kitti_ap`; the objects need ``alphas``.

    Raises:
      InputError: as in :func:`kitti_ap`, or objects without ``alphas``.
    """
    for name, frames in (("truth", truth), ("found", found)):
        for place, frame in enumerate(frames):
            if isinstance(frame, KittiObjects) and frame.alphas is None and len(frame):
                raise InputError(
                    f"{name}[{place}] has no alphas: give KittiObjects(..., alphas=), the angles "
                    "of observation"
                )
    return _by_class(truth, found, "image", overlaps, recalls, oriented=True)


def _by_class(
    truth: Sequence[KittiObjects],
    found: Sequence[KittiObjects],
    overlap: KittiOverlap,
    overlaps: Mapping[str, float] | None,
    recalls: KittiRecalls,
    *,
    oriented: bool,
) -> dict[str, dict[str, float]]:
    check_scenes(truth, found, KittiObjects)
    check_known("overlap", overlap, get_args(KittiOverlap))
    if recalls not in COUNTED:
        raise InputError(f"recalls={recalls} must be 40 or 11")
    needed = KITTI_OVERLAPS if overlaps is None else dict(overlaps)
    for name, value in needed.items():
        if not 0 < value < 1:
            raise InputError(f"overlaps[{name!r}]={value} must lie between 0 and 1")
    shared = [_overlaps(t, f, overlap) for t, f in zip(truth, found, strict=True)]
    found_values: dict[str, dict[str, float]] = {}
    for name, value in needed.items():
        found_values[name] = {}
        for level in DIFFICULTIES:
            frames = [
                _frame(*frame, name.lower(), level, overlap == "image")
                for frame in zip(truth, found, shared, strict=True)
            ]
            at_recalls = _at_recalls(frames, value, oriented=oriented)
            found_values[name][level.name] = float(np.mean(at_recalls[COUNTED[recalls]]))
    return found_values


@dataclass
class _Frame:
    """The T true and F found boxes of one frame that matter for one class and difficulty.

    `scores` are those of the found boxes, ``[F]``. `true_state` ``[T]`` and `found_state` ``[F]``
    are ``COUNTS``, or ``IGNORED`` for a box that is neither correct nor wrong. `iou` has the
    overlap of each found box with each true box, ``[F, T]``.
    """

    iou: np.ndarray  # [found, truth]
    scores: np.ndarray
    true_state: np.ndarray
    found_state: np.ndarray
    no_care: np.ndarray  # [found], largest part of the box's area in a DontCare rectangle, 0..1
    similarity: np.ndarray | None  # [found, truth], of the angles of observation


def _at_recalls(frames: Sequence[_Frame], needed: float, *, oriented: bool) -> np.ndarray:
    """Return the precision at the recalls 0, 1/40, ... 1, ``[41]``; NaN if no true box counts.

    Each value is the highest precision at this recall or above. Boxes match if their IoU exceeds
    `needed`. If `oriented`, a correct box counts by its similarity instead of 1.
    """
    number = sum(int(np.sum(frame.true_state == COUNTS)) for frame in frames)
    if number == 0:
        return np.full(NUM_RECALLS + 1, np.nan)
    scores = np.concatenate([_match(frame, needed, None)[0] for frame in frames])
    values = np.zeros(NUM_RECALLS + 1)
    for place, threshold in enumerate(_thresholds(scores, number)):
        right = wrong = 0
        worth = 0.0
        for frame in frames:
            hits, false, similarity = _match(frame, needed, threshold)
            right, wrong = right + len(hits), wrong + false
            worth += similarity if oriented else len(hits)
        values[place] = worth / max(right + wrong, 1)
    return np.maximum.accumulate(values[::-1])[::-1]


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
    similarity = None
    if found.alphas is not None and truth.alphas is not None:
        away = found.alphas[mine][:, None] - truth.alphas[theirs][None]
        similarity = (1 + np.cos(away)) / 2
    return _Frame(
        iou[np.ix_(mine, theirs)],
        found.scores[mine],
        true_state[theirs],
        found_state[mine],
        no_care[mine],
        similarity,
    )


def _match(frame: _Frame, needed: float, threshold: float | None) -> tuple[list[float], int, float]:
    """Return the scores of the correct boxes, the number of wrong boxes, and the total similarity.

    Each true box in turn takes one found box with an IoU above `needed` that is still free. If
    `threshold` is None, it takes the box of the highest score. Otherwise found boxes with a score
    below `threshold` are left out, and it takes the box of the largest IoU. An ignored found box is
    then taken only if there is no other.
    """
    is_free = np.ones(len(frame.scores), bool)
    if threshold is not None:
        is_free = frame.scores >= threshold
    counts = frame.found_state == COUNTS
    hits, similarity = [], 0.0
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
            similarity += 0.0 if frame.similarity is None else frame.similarity[best, column]
    return hits, int(np.sum(is_free & counts & ~(frame.no_care > needed))), similarity


def _thresholds(scores: np.ndarray, number: int) -> list[float]:
    """Return the scores at which recall is nearest to 0, 1/40, 2/40 and so on, highest first.

    `scores` are those of the correct boxes, and `number` is the number of true boxes.
    """
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
