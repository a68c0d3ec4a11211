"""The task ``detect`` of ``voxax train``: detectors on data sets, with scores of benchmarks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from voxax.cli.detection_task import BRANCHES, MIN_RADIUS, BoxPreparation, Detection, augmented
from voxax.cli.published import detector_networks
from voxax.cli.scenes import SceneExample
from voxax.cli.task import ListedScore
from voxax.detection import (
    KITTI_ANCHORS,
    NUSCENES_ANCHORS,
    Anchor,
    NuscenesScore,
    Objects,
    kitti_aos,
    kitti_ap,
    nuscenes_score,
)
from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import Transform
from voxax.io.kitti_objects import KITTI_CLASSES
from voxax.io.nuscenes import NUSCENES_CLASSES
from voxax.models.anchor_training import AnchorTrainer
from voxax.models.center_training import SparseCenterTrainer
from voxax.models.centerpoint import BRANCHES as WITH_VELOCITY
from voxax.parallel.trainer import DataParallelAnchorTrainer, DataParallelSparseCenterTrainer


class KittiScore(ListedScore):
    """Average precision as in the KITTI benchmark, at 40 recall levels, by class and difficulty.

    The truth of a scene is an :class:`AnnotatedScan` whose ``about`` is a
    :class:`voxax.io.kitti_objects.KittiFrame`; the points of the scan are not used.
    """

    figure = "moderate 3D AP"

    def add(self, truth: AnnotatedScan, prediction: Objects) -> None:
        assert truth.about.true is not None
        found = prediction.boxes, prediction.classes, prediction.scores
        super().add(truth.about.true, truth.about.found(*found))

    def ap(self, overlap: Any = "3d", recalls: Any = 40) -> Mapping[str, Mapping[str, float]]:
        """Return the AP by class, then by difficulty; see :func:`voxax.detection.kitti_ap`."""
        return kitti_ap(self.truth, self.found, overlap=overlap, recalls=recalls)

    def value(self) -> float:
        values = [own["moderate"] for own in self.ap().values()]
        known = [value for value in values if not np.isnan(value)]
        return float(np.mean(known)) if known else 0.0

    def metrics(self) -> dict[str, Any]:
        return {
            "val_map": self.value(),
            "val_ap_3d": _plain(self.ap()),
            "val_ap_bev": _plain(self.ap("bev")),
            "val_ap_image": _plain(self.ap("image")),
            "val_aos": _plain(kitti_aos(self.truth, self.found)),
            "val_ap_3d_11_recalls": _plain(self.ap(recalls=11)),
            "val_frames": len(self.truth),
        }

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        rows = [(name, *map(_text, own.values())) for name, own in self.ap().items()]
        return ("class", "easy", "moderate", "hard"), rows


class NuscenesRunScore(ListedScore):
    """Mean average precision, errors and detection score (NDS) of the nuScenes benchmark.

    The truth of a scene is an :class:`AnnotatedScan` whose ``about`` is a
    :class:`voxax.io.nuscenes.NuscenesSample`; the points of the scan are not used. Attributes of
    objects are not predicted, so their error is 1.
    """

    figure = "NDS"

    def add(self, truth: AnnotatedScan, prediction: Objects) -> None:
        sample = truth.about
        found = sample.evaluated(sample.best_in_world(prediction))
        super().add(sample.evaluated(sample.true), found)

    def score(self) -> NuscenesScore:
        """Return the scores of the nuScenes benchmark: average precisions, errors and NDS."""
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


ANCHORED, SPARSE = ("second", "second-residual"), "voxelnext"
MULTI_HEAD = "second-nuscenes"  # `voxax train` cannot train it
ANCHORS: dict[str, Anchor] = {
    **dict(zip(KITTI_CLASSES, KITTI_ANCHORS, strict=True)),
    **dict(zip(NUSCENES_CLASSES, NUSCENES_ANCHORS, strict=True)),
}
"""Default anchors of the network ``second`` by class name; its option ``anchors`` replaces them."""
# From OpenPCDet's configurations, like ``ANCHORS``. In Waymo the origin is on the ground.
WAYMO_ANCHORS: dict[str, Anchor] = {
    "Car": Anchor((4.7, 2.1, 1.7), 0.0, matched=0.55, unmatched=0.4),
    "Pedestrian": Anchor((0.91, 0.86, 1.73), 0.0, matched=0.5, unmatched=0.35),
    "Cyclist": Anchor((1.78, 0.84, 1.78), 0.0, matched=0.5, unmatched=0.35),
}
SCORES = {"kitti": KittiScore, "nuscenes": NuscenesRunScore}
REGIONS = {
    "kitti": (0.0, -40.0, -3.0, 70.4, 40.0, 1.0),
    "nuscenes": (-51.2, -51.2, -5.0, 51.2, 51.2, 3.0),
    "waymo": (-75.2, -75.2, -2.0, 75.2, 75.2, 4.0),
    "argoverse2": (-200.0, -200.0, -20.0, 200.0, 200.0, 20.0),
}
"""Default region of detectors by data set: lower x, y, z, then upper x, y, z, in meters."""
# Largest turn of the augmentation in radians, and the axes that it mirrors. KITTI's scans show only
# the space in front of the car.
TURNS = {**dict.fromkeys(REGIONS, (math.pi, (0, 1))), "kitti": (math.pi / 4, (1,))}


@dataclasses.dataclass(frozen=True)
class FolderPreparation(BoxPreparation):
    """:class:`BoxPreparation` whose examples have the ``truth`` that benchmark scores need.

    This truth is the annotated scan, with its boxes but without its points.
    """

    def __call__(self, scan: AnnotatedScan) -> SceneExample:
        example = super().__call__(scan)
        truth = dataclasses.replace(scan, cloud=PointCloud(np.zeros((0, 3))))
        return dataclasses.replace(example, truth=truth)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderDetection(Detection):
    """Settings of the training of a detector on a data set of annotated scans.

    Attributes:
      metric: name of the score. ``kitti`` and ``nuscenes`` are the scores of these benchmarks and
        need scans of that data set. Any other name, such as ``distance``, ``waymo`` or
        ``argoverse2``, means :class:`DetectionScore`.
      options: keyword arguments of the network's class. ``second`` also takes ``anchors``, which
        maps class names to ``[length, width, height, bottom]`` or ``[length, width, height, bottom,
        matched, unmatched]``, see :class:`voxax.detection.Anchor`.
    """

    metric: str = "distance"

    @classmethod
    def networks(cls) -> Sequence[str]:
        found = dict.fromkeys((*super().networks(), *detector_networks()))
        return tuple(name for name in found if name != MULTI_HEAD)

    @classmethod
    def shares_equally(cls, network: str) -> bool:
        return not network.startswith(SPARSE)  # its layers count voxels

    @property
    def has_velocity(self) -> bool:
        """Whether the network learns the velocities of objects.

        True for data of nuScenes, except with the networks ``small``, ``second`` and
        ``second-residual``.
        """
        return self.metric == "nuscenes" and self.network not in ("small", *ANCHORED)

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """Anchors of a ``second`` network, one for each class, from `options` or the defaults."""
        given = self.options.get("anchors", {})
        if not isinstance(given, Mapping) or set(given) - set(self.class_names):
            raise InputError(
                f"anchors = {given!r}: give {{ {self.class_names[0]} = [length, width, height, "
                f"bottom] }} for classes of {', '.join(self.class_names)}, in meters"
            )
        found = []
        known = WAYMO_ANCHORS if self.metric == "waymo" else ANCHORS
        for name in self.class_names:
            if name in given:
                found.append(_anchor(name, given[name]))
            elif name in known:
                found.append(known[name])
            else:
                raise InputError(
                    f"{self.network} has no anchor for {name!r}: give its options anchors = "
                    f"{{ {name} = [length, width, height, bottom] }}, in meters"
                )
        return tuple(found)

    def preparation(self) -> BoxPreparation:
        plain = super().preparation()
        if self.metric not in SCORES:
            return plain
        fields: dict[str, Any] = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
        fields["columns"] = 9 if self.has_velocity else 7
        return FolderPreparation(**fields)

    def model(self) -> Any:
        if self.network == "small":
            return super().model()
        channels, classes = self.preparation().num_channels, len(self.class_names)
        if self.network in ANCHORED:
            own = {name: value for name, value in self.options.items() if name != "anchors"}
            number = sum(len(anchor.yaws) for anchor in self.anchors)
            own |= {"grid": self.region.grid, "anchors": number, **self.computes_in}
            return self._made(channels, classes, own)
        branches = dict(WITH_VELOCITY if self.has_velocity else BRANCHES)
        options: dict[str, Any] = {"grid": self.region.grid, "branches": branches}
        options |= self.computes_in
        if self.groups is not None:
            options["groups"] = self.groups
        return self.as_its_source(self._made(channels, classes, options | self.options))

    def trainer(self, devices: int = 1) -> Any:
        looked = self.region, len(self.class_names)
        if self.network in ANCHORED:
            kinds = AnchorTrainer, DataParallelAnchorTrainer
            options: dict[str, Any] = {"anchors": self.anchors}
        elif self.network.startswith(SPARSE):
            kinds = SparseCenterTrainer, DataParallelSparseCenterTrainer
            options = {"box_weight": self.box_weight, "min_radius": MIN_RADIUS}
        else:
            return super().trainer(devices)
        return self.trained_on(devices, *kinds, *looked, **options)

    def tracker(self) -> Callable[[Any, Any], str]:
        if self.network not in ANCHORED:
            return super().tracker()

        def told(labels: Any, prediction: Any) -> str:
            del labels
            parts = (float(np.mean(values)) for values in prediction)  # mean of devices
            named = zip(("classes", "boxes", "directions"), parts, strict=True)
            return "  ".join(f"{name} {value:.2f}" for name, value in named)

        return told

    def score(self) -> Any:
        kind = SCORES.get(self.metric)
        return super().score() if kind is None else kind(self.class_names)


def _anchor(name: str, numbers: Any) -> Anchor:
    """Return the anchor of class `name` that the option ``anchors`` gives as 4 or 6 numbers.

    `numbers` has length, width, height and bottom in meters, and optionally the IoU thresholds
    ``matched`` and ``unmatched`` of :class:`voxax.detection.Anchor`.
    """
    known = isinstance(numbers, list | tuple) and len(numbers) in (4, 6)
    if not known or not all(isinstance(value, int | float) for value in numbers):
        raise InputError(
            f"the anchor of {name}, {numbers!r}, must be [length, width, height, bottom] in "
            "meters, and may have the IoUs matched and unmatched after them"
        )
    return Anchor(numbers[:3], numbers[3], Anchor.yaws, *numbers[4:])


def box_transform(
    layout: str,
    *,
    rotate: bool,
    flip: bool,
    scales: tuple[float, float],
    points: Transform | None = None,
) -> functools.partial[AnnotatedScan]:
    """Return a picklable augmentation: turn, mirror and scale annotated scans at random.

    Args:
      layout: name of the data set's layout, a key of ``TURNS``. Scans of KITTI are turned by at
        most 45 degrees and mirrored in y only.
      rotate: whether to turn scans around the vertical.
      flip: whether to mirror scans.
      scales: smallest and largest factor on sizes.
      points: random change of only the points, applied last; None for no change.
    """
    max_angle, flips = TURNS[layout]
    return functools.partial(
        augmented,
        max_angle=max_angle if rotate else 0.0,
        flips=flips if flip else (),
        scales=scales,
        points=points,
    )
