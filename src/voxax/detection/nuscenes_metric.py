"""The detection metrics of nuScenes: average precision by center distance, errors, and NDS.

Source: Caesar et al., "nuScenes: A multimodal dataset for autonomous driving", CVPR 2020, and the
configuration ``detection_cvpr_2019`` of its development kit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxax.detection.boxes import wrap_angle
from voxax.detection.objects import Objects, check_scenes
from voxax.errors import InputError

# Largest distance from the vehicle at which each class is evaluated, in meters.
NUSCENES_RANGES = {
    "car": 50.0,
    "truck": 50.0,
    "bus": 50.0,
    "trailer": 50.0,
    "construction_vehicle": 50.0,
    "pedestrian": 40.0,
    "motorcycle": 40.0,
    "bicycle": 40.0,
    "traffic_cone": 30.0,
    "barrier": 30.0,
}
ERRORS = ("translation", "scale", "orientation", "velocity", "attribute")
UNDEFINED = {
    "traffic_cone": ("orientation", "velocity", "attribute"),
    "barrier": ("velocity", "attribute"),
}
DISTANCES = (0.5, 1.0, 2.0, 4.0)
ERROR_DISTANCE = 2.0
RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class NuscenesObjects(Objects):
    """True or found boxes of one nuScenes sample, in the vehicle's frame at the sample's time.

    Args:
      boxes: ``[N, 9]``, with velocity; an unknown velocity is NaN.
      classes: ``[N]``, names.
      scores: ``[N]``, scores of found boxes; None for true boxes.
      attributes: ``[N]``, names of attributes; an empty name, or None for all, is no attribute.
      num_points: ``int[N]``, number of LiDAR and radar points in each true box. Boxes with 0 points
        are left out; None keeps all.

    Raises:
      InputError: wrong shapes, invalid boxes, or scores that are not finite.
    """

    attributes: Any = None
    num_points: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        number = len(self)
        if number and self.boxes.shape[1] != 9:
            raise InputError(
                f"boxes of shape {list(self.boxes.shape)}: give [N, 9], the last two columns "
                "are the velocity, NaN where it is unknown"
            )
        if self.attributes is None:
            object.__setattr__(self, "attributes", np.full(number, "", dtype=object))
        if self.num_points is None:
            object.__setattr__(self, "num_points", np.full(number, -1))
        self._set("attributes", number, object)
        self._set("num_points", number)

    def within(self, ranges: Mapping[str, float]) -> NuscenesObjects:
        """Return the boxes nearer to the vehicle than the range of their class.

        `ranges` is a dict from class to range in meters. Boxes with 0 points, and boxes of classes
        that are not in `ranges`, are left out.
        """
        distance = np.linalg.norm(self.boxes[:, :2], axis=1)
        limit = np.array([ranges.get(name, -1.0) for name in self.classes.tolist()])
        kept = (distance < limit) & (self.num_points != 0)
        scores = None if self.scores is None else self.scores[kept]
        return NuscenesObjects(
            self.boxes[kept],
            self.classes[kept],
            scores,
            self.attributes[kept],
            self.num_points[kept],
        )


@dataclass(frozen=True)
class NuscenesScore:
    """Results of nuScenes' detection evaluation.

    Attributes:
      mean_ap: average precision, mean over classes and distances, 0..1.
      nds: the nuScenes detection score, 0..1.
      errors: mean of each error over classes, by name: translation in meters, scale as 1 - IoU,
        orientation in radians, velocity in meters per second, attribute as 1 - accuracy.
      class_ap: average precision by class and distance in meters.
      class_errors: errors by class and name; NaN for an error that is not defined for a class.
    """

    mean_ap: float
    nds: float
    errors: dict[str, float]
    class_ap: dict[str, dict[float, float]]
    class_errors: dict[str, dict[str, float]]


def nuscenes_score(
    truth: Sequence[NuscenesObjects],
    found: Sequence[NuscenesObjects],
    *,
    ranges: Mapping[str, float] | None = None,
) -> NuscenesScore:
    """Return mAP, the five errors and NDS (detection score) as nuScenes defines them.

    The development kit also leaves out bicycles and motorcycles in annotated bicycle racks. This
    function does not: remove them from both arguments.

    Args:
      truth: true boxes of each sample.
      found: at most 500 boxes found in each sample, with scores.
      ranges: dict from class to the largest distance at which it is evaluated, in meters. None
        takes nuScenes' ranges, ``NUSCENES_RANGES``.

    Raises:
      InputError: different numbers of samples, no scores, too many boxes, or a negative range.
    """
    check_scenes(truth, found, NuscenesObjects)
    ranges = NUSCENES_RANGES if ranges is None else dict(ranges)
    if not ranges or min(ranges.values()) < 0:
        raise InputError(f"ranges={ranges}: give each class a distance in meters, at least one")
    for place, sample in enumerate(found):
        if len(sample) > 500:
            raise InputError(
                f"found[{place}] has {len(sample)} boxes: nuScenes takes at most 500 of a sample, "
                "keep those with the highest scores"
            )
    truth, found = ([sample.within(ranges) for sample in samples] for samples in (truth, found))
    class_ap: dict[str, dict[float, float]] = {}
    class_errors: dict[str, dict[str, float]] = {}
    for name in ranges:
        matches = {d: _match(truth, found, name, d) for d in {*DISTANCES, ERROR_DISTANCE}}
        class_ap[name] = {d: _average_precision(matches[d]) for d in DISTANCES}
        class_errors[name] = _errors(truth, found, name, matches[ERROR_DISTANCE])
    mean_ap = float(np.mean([np.mean(list(by.values())) for by in class_ap.values()]))
    errors = {}
    for error in ERRORS:
        values = np.array([by[error] for by in class_errors.values()])
        known = values[~np.isnan(values)]
        errors[error] = float(known.mean()) if len(known) else float("nan")
    right = [max(0.0, 1.0 - value) for value in errors.values()]
    nds = (5 * mean_ap + float(np.sum(right))) / 10
    return NuscenesScore(mean_ap, nds, errors, class_ap, class_errors)


def center_distance_ap(
    truth: Sequence[Objects], found: Sequence[Objects], name: Any, distance: float
) -> float:
    """Return nuScenes' average precision of one class for one center distance, 0..1.

    Boxes are matched by falling score. A box is correct if the nearest true box of its scene and
    class that is not matched yet is nearer than ``distance``, seen from above. The result is the
    mean of ``max(precision - 0.1, 0) / 0.9`` over the recalls from 0.11 to 1; it is 0 if there are
    no true boxes.

    Args:
      truth: true boxes of each scene.
      found: boxes found in each scene, with scores.
      name: name of the class.
      distance: distance of centers below which boxes match, in meters.

    Raises:
      InputError: different numbers of scenes, no scores, or a distance that is not positive.
    """
    check_scenes(truth, found, Objects)
    if not 0 < distance < np.inf:
        raise InputError(f"distance={distance} must be positive and finite, in meters")
    return _average_precision(_match(truth, found, name, distance))


@dataclass(frozen=True)
class _Matches:
    """The F found boxes of one class by falling score, and the true box that each one matches.

    For each found box, `scene`, `row` and `true_row` are the indices of its scene, of the box in
    the scene, and of its true box (-1 for none). `number` counts the true boxes.
    """

    number: int  # of true boxes
    scores: np.ndarray  # [F]
    scene: np.ndarray  # int[F]
    row: np.ndarray  # int[F], in the scene's found boxes
    true_row: np.ndarray  # int[F], in the scene's true boxes; -1 if none matches

    @property
    def is_right(self) -> np.ndarray:
        return self.true_row >= 0


def _match(
    truth: Sequence[Objects], found: Sequence[Objects], name: Any, distance: float
) -> _Matches:
    true_rows = [np.flatnonzero(scene.classes == name) for scene in truth]
    rows = [np.flatnonzero(scene.classes == name) for scene in found]
    lengths = [len(r) for r in rows]
    scene = np.repeat(np.arange(len(rows)), lengths)
    row = np.concatenate([np.zeros(0, np.int64), *rows])
    nothing = [np.zeros(0)]
    scores = np.concatenate(nothing + [s.scores[r] for s, r in zip(found, rows, strict=True)])
    # Among equal scores the last box comes first, as in the development kit.
    order = np.argsort(scores, kind="stable")[::-1]
    scores, scene, row = scores[order], scene[order], row[order]
    is_left = [np.ones(len(r), bool) for r in true_rows]
    true_row = np.full(len(row), -1)
    for place, (s, r) in enumerate(zip(scene, row, strict=True)):
        if not is_left[s].any():
            continue
        away = truth[s].boxes[true_rows[s], :2] - found[s].boxes[r, :2]
        away = np.where(is_left[s], np.linalg.norm(away, axis=1), np.inf)
        nearest = int(np.argmin(away))
        if away[nearest] < distance:
            is_left[s][nearest] = False
            true_row[place] = true_rows[s][nearest]
    return _Matches(sum(len(r) for r in true_rows), scores, scene, row, true_row)


def _curve(matches: _Matches) -> tuple[np.ndarray, np.ndarray]:
    """Return precision and score at :data:`RECALLS`; 0 at recalls that no found box reaches."""
    if not matches.is_right.any():
        return np.zeros(len(RECALLS)), np.zeros(len(RECALLS))
    hits = np.cumsum(matches.is_right).astype(np.float64)
    precision = hits / np.arange(1, len(hits) + 1)
    recall = hits / matches.number
    return (
        np.interp(RECALLS, recall, precision, right=0),
        np.interp(RECALLS, recall, matches.scores, right=0),
    )


def _average_precision(matches: _Matches) -> float:
    precision = _curve(matches)[0][11:]
    return float(np.mean(np.maximum(precision - 0.1, 0.0)) / 0.9)


def _errors(
    truth: Sequence[NuscenesObjects],
    found: Sequence[NuscenesObjects],
    name: str,
    matches: _Matches,
) -> dict[str, float]:
    """Return nuScenes' true positive errors of the class `name`, by the names in ``ERRORS``.

    Each error is the mean over the recalls from 0.11 to the highest reached. It is 1 if no recall
    above 0.1 is reached, and NaN if it is not defined for the class. `matches` are the matches of
    the boxes in `found` with those in `truth`, one entry per scene.
    """
    result: dict[str, float] = dict.fromkeys(ERRORS, 1.0)
    score = _curve(matches)[1]
    reached = np.flatnonzero(score)
    last = int(reached[-1]) if len(reached) else 0
    if last >= 11:
        right = np.flatnonzero(matches.is_right)
        pairs = [(matches.scene[i], matches.true_row[i], matches.row[i]) for i in right]
        a = np.array([truth[s].boxes[t] for s, t, _ in pairs])
        b = np.array([found[s].boxes[r] for s, _, r in pairs])
        turn = np.pi if name == "barrier" else 2 * np.pi
        shared = np.prod(np.minimum(a[:, 3:6], b[:, 3:6]), axis=1)
        union = np.prod(a[:, 3:6], axis=1) + np.prod(b[:, 3:6], axis=1) - shared
        attributes = [(truth[s].attributes[t], found[s].attributes[r]) for s, t, r in pairs]
        values = {
            "translation": np.linalg.norm(a[:, :2] - b[:, :2], axis=1),
            "scale": 1 - shared / union,
            "orientation": np.abs(wrap_angle((a[:, 6] - b[:, 6]) * (2 * np.pi / turn)))
            * (turn / (2 * np.pi)),
            "velocity": np.linalg.norm(a[:, 7:9] - b[:, 7:9], axis=1),
            "attribute": np.array([np.nan if not t else float(t != f) for t, f in attributes]),
        }
        scores = matches.scores[right][::-1]
        for error, each in values.items():
            at = np.interp(score[::-1], scores, _running_mean(each)[::-1])[::-1]
            result[error] = float(np.mean(at[11 : last + 1]))
    return result | dict.fromkeys(UNDEFINED.get(name, ()), float("nan"))


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Return the running mean ``[N]`` of values ``[N]``, in which NaN does not count.

    The mean is 0 before the first value that is not NaN, and 1 everywhere if all values are NaN.
    """
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    number = np.cumsum(known)
    return np.nancumsum(values) / np.maximum(number, 1)
