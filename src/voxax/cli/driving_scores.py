"""Scores of KITTI and of nuScenes, as their benchmarks define them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voxax.cli.task import Score
from voxax.detection import (
    KittiObjects,
    NuscenesObjects,
    NuscenesScore,
    Objects,
    kitti_ap,
    nuscenes_score,
)
from voxax.io.annotated import AnnotatedScan

MOST_BOXES = 500
"""Boxes of a sample that nuScenes takes."""


class KittiScore(Score):
    """Average precision at 40 recalls by class and difficulty.

    Truth is an :class:`AnnotatedScan` of :class:`voxax.io.kitti_objects.KittiFrame`, whose points
    are not looked at.
    """

    figure = "moderate 3D AP"

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.truth: list[KittiObjects] = []
        self.found: list[KittiObjects] = []

    def add(self, truth: AnnotatedScan, prediction: Objects) -> None:
        assert isinstance(truth.objects, KittiObjects)
        self.truth.append(truth.objects)
        found = prediction.boxes, prediction.classes, prediction.scores
        self.found.append(truth.about.found(*found))

    def ap(self, overlap: Any = "3d") -> Mapping[str, Mapping[str, float]]:
        """Average precision by class and difficulty; NaN without true boxes."""
        return kitti_ap(self.truth, self.found, overlap=overlap)

    def value(self) -> float:
        values = [own["moderate"] for own in self.ap().values()]
        known = [value for value in values if not np.isnan(value)]
        return float(np.mean(known)) if known else 0.0

    def metrics(self) -> dict[str, Any]:
        return {
            "val_map": self.value(),
            "val_ap_3d": _plain(self.ap()),
            "val_ap_bev": _plain(self.ap("bev")),
            "val_frames": len(self.truth),
        }

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        rows = [(name, *map(_text, own.values())) for name, own in self.ap().items()]
        return ("class", "easy", "moderate", "hard"), rows


class NuscenesRunScore(Score):
    """Mean average precision, errors and the detection score of nuScenes.

    Truth is an :class:`AnnotatedScan` of :class:`voxax.io.nuscenes.NuscenesSample`, whose points
    are not looked at. Attributes are not predicted, so their error is 1.
    """

    figure = "NDS"

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.truth: list[NuscenesObjects] = []
        self.found: list[NuscenesObjects] = []

    def add(self, truth: AnnotatedScan, prediction: Objects) -> None:
        sample = truth.about
        assert isinstance(truth.objects, NuscenesObjects)
        best = np.argsort(-np.asarray(prediction.scores), kind="stable")[:MOST_BOXES]
        boxes = prediction.boxes[best]
        if boxes.shape[1] == 7:  # of a network without velocities
            boxes = np.column_stack([boxes, np.zeros((len(boxes), 2))])
        found = NuscenesObjects(boxes, prediction.classes[best], prediction.scores[best])
        self.truth.append(sample.in_vehicle(truth.objects))
        self.found.append(sample.in_vehicle(found))

    def score(self) -> NuscenesScore:
        """What nuScenes reports."""
        return nuscenes_score(self.truth, self.found)

    def value(self) -> float:
        return self.score().nds

    def metrics(self) -> dict[str, Any]:
        score = self.score()
        return {
            "val_nds": score.nds,
            "val_map": score.mean_ap,
            "val_errors": {name: _known(value) for name, value in score.errors.items()},
            "val_ap": {
                name: {f"{distance} m": value for distance, value in own.items()}
                for name, own in score.class_ap.items()
            },
            "val_samples": len(self.truth),
        }

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        own = self.score().class_ap
        distances = list(next(iter(own.values())))
        rows = [(name, *(_text(by[d]) for d in distances)) for name, by in own.items()]
        return ("class", *(f"AP at {d} m" for d in distances)), rows


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def _text(value: float) -> str:
    return "absent" if np.isnan(value) else f"{value:.3f}"


def _plain(table: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {name: {key: _known(v) for key, v in own.items()} for name, own in table.items()}
