"""The task ``detect``: training of networks that predict the boxes of objects in a scan."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flax import nnx

from voxax import models
from voxax.cli.published import made
from voxax.cli.scenes import Batch, SceneExample
from voxax.cli.task import ListedScore, Task, check_factors
from voxax.detection import Objects, Region, augment, center_distance_ap
from voxax.errors import InputError
from voxax.geometry import Plan
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.augment import Transform
from voxax.io.examples import Preparation
from voxax.io.mean_features import MeanFeatures
from voxax.models.center_training import CenterTrainer
from voxax.parallel.trainer import DataParallelCenterTrainer

NETWORKS = ("small", "centerpoint")
# Outputs of the heads and their channels: no velocity, because a single scan does not show it.
BRANCHES = {"center": 2, "center_z": 1, "dim": 3, "rot": 2}
# Smallest radius of the peak around the center of a box, in cells.
MIN_RADIUS = 1
# Largest distances between the centers of a true and a matching found box, in meters.
DISTANCES = (0.5, 1.0, 2.0)


@dataclasses.dataclass(frozen=True)
class BoxPreparation:
    """Function that turns an annotated scan into a training example; picklable for workers.

    Attributes:
      class_names: names of the classes; objects of other classes are left out.
      voxel_size: edge length of a voxel in meters: one number for all axes, or three numbers.
      low, high: lower and upper corner of the region, ``[3]`` each, in meters. Points outside, and
        objects whose centers are outside in x or y, are left out.
      max_boxes: static number of boxes; if a scan has more, the nearest to the origin are kept.
      columns: number of columns of a box, which is 7, or 9 with the velocity.
      attributes, plan, min_capacity: see :class:`voxax.io.examples.Preparation`.
      inputs: input channels of a published network, see
        :class:`voxax.io.mean_features.MeanFeatures`; () for the channels of `attributes`.
    """

    class_names: tuple[str, ...]
    voxel_size: float | tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    max_boxes: int = 128
    attributes: tuple[str, ...] = ()
    plan: Plan | None = None
    min_capacity: int = 0
    columns: int = 7
    inputs: tuple[str, ...] = ()

    @property
    def num_channels(self) -> int:
        """Number of channels of an example's features."""
        if self.inputs:
            return MeanFeatures(self.voxel_size, self.inputs).num_channels
        return Preparation(self.voxel_size, self.attributes).num_channels

    def __call__(self, scan: AnnotatedScan) -> SceneExample:
        cloud = self.inside(scan.cloud)
        rest: dict[str, Any] = {"plan": self.plan, "min_capacity": self.min_capacity}
        if self.inputs:  # published networks read where a point is in the scan
            size, box = self.voxel_size, (self.low, self.high)
            unlabeled = dataclasses.replace(cloud, labels=None)
            voxels = MeanFeatures(size, self.inputs, *box, **rest)(unlabeled).voxels
        else:
            # The lattice begins at the lower corner.
            positions = cloud.positions - np.asarray(self.low)
            shifted = dataclasses.replace(cloud, positions=positions, labels=None)
            voxels = Preparation(self.voxel_size, self.attributes, **rest)(shifted).voxels
        truth = self.truth(scan.objects)
        boxes = np.zeros((1, self.max_boxes, self.columns), np.float32)
        classes = np.full((1, self.max_boxes), -1, np.int32)
        near = np.argsort(np.hypot(*truth.boxes[:, :2].T), kind="stable")[: self.max_boxes]
        known = truth.boxes[near, : self.columns]
        boxes[0, : len(near), : known.shape[1]] = known
        names = {name: number for number, name in enumerate(self.class_names)}
        classes[0, : len(near)] = [names[name] for name in truth.classes[near].tolist()]
        return SceneExample(voxels, (boxes, classes), truth)

    def inside(self, cloud: PointCloud) -> PointCloud:
        """Return the points of the cloud that lie in the region."""
        return cloud.select(Region(self.low, self.high, self.voxel_size).holds(cloud.positions))

    def truth(self, objects: Objects) -> Objects:
        """Return the objects that the network should find.

        These are the objects of the classes `class_names` whose box has only finite numbers, and
        whose center is in the region in x and y.
        """
        boxes = objects.boxes
        center = boxes[:, :2]
        kept = np.isin(objects.classes, self.class_names) & np.isfinite(boxes[:, :7]).all(axis=1)
        kept &= (center >= self.low[:2]).all(axis=1) & (center < self.high[:2]).all(axis=1)
        return Objects(boxes[kept], objects.classes[kept])


def augmented(
    scan: AnnotatedScan,
    rng: np.random.Generator,
    *,
    max_angle: float = math.pi,
    points: Transform | None = None,
    **limits: Any,
) -> AnnotatedScan:
    """Return an annotated scan with points and boxes turned, mirrored and scaled at random.

    Args:
      scan: scan with its boxes.
      rng: source of the random numbers.
      max_angle: largest turn around the vertical in radians.
      points: random change of only the points, applied last; None for no change.
      limits: further arguments of :func:`voxax.detection.augment`.
    """
    own, cloud = scan.objects, scan.cloud
    positions, boxes = augment(cloud.positions, own.boxes, rng, max_angle=max_angle, **limits)
    cloud = dataclasses.replace(cloud, positions=positions)
    if points is not None:
        cloud = points(cloud, rng)
    return AnnotatedScan(cloud, Objects(boxes, own.classes), scan.about)


class DetectionScore(ListedScore):
    """Mean average precision of boxes, matched by the distance of centers as in nuScenes.

    `baseline` is the score of a simpler method on the same scenes, printed beside it, or None.
    """

    figure = "mAP"
    baseline: DetectionScore | None = None

    def ap(self) -> dict[str, dict[float, float]]:
        """Return the average precision by class name, then by matching distance in meters."""
        return {
            name: {
                distance: center_distance_ap(self.truth, self.found, name, distance)
                for distance in DISTANCES
            }
            for name in self.class_names
        }

    def counts(self) -> dict[str, int]:
        """Return the number of true objects by class name."""
        every = np.concatenate([np.zeros(0, str), *(scene.classes for scene in self.truth)])
        return {name: int((every == name).sum()) for name in self.class_names}

    def value(self) -> float:
        counts = self.counts()
        values = [list(ap.values()) for name, ap in self.ap().items() if counts[name]]
        return float(np.mean(values)) if values else 0.0

    def metrics(self) -> dict[str, Any]:
        ap = self.ap()
        told = {
            "val_map": self.value(),
            "val_ap": {n: {f"{d} m": v for d, v in own.items()} for n, own in ap.items()},
            "val_objects": self.counts(),
        }
        if self.baseline is not None:
            own = self.baseline.metrics()
            told |= {"baseline_map": own["val_map"], "baseline_ap": own["val_ap"]}
        return told

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        counts, beside = self.counts(), ""
        found = {name: [f"{v:.3f}" for v in ap.values()] for name, ap in self.ap().items()}
        if self.baseline is not None:
            # Both values share a cell, because three more columns would need more than 80
            # characters.
            beside = ", clusters"
            for name, ap in self.baseline.ap().items():
                found[name] = [
                    f"{own}, {v:.3f}" for own, v in zip(found[name], ap.values(), strict=True)
                ]
        rows = [
            (name, *(shown if counts[name] else "absent" for shown in own), str(counts[name]))
            for name, own in found.items()
        ]
        return ("class", *(f"AP at {d} m{beside}" for d in DISTANCES), "objects"), rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detection(Task):
    """Settings of the training of a network that detects objects in scans.

    Attributes:
      bounds: region of the points and objects: lower x, y, z, then upper x, y, z, in meters.
      groups: class numbers of each head of the network; None puts all classes into one head.
      is_directed, box_weight, neighbor_cells, radii: see
        :class:`voxax.models.center_training.CenterTrainer`.
      options: further keyword arguments of the network's class.
    """

    task = "detect"
    title = "CenterPoint"
    bounds: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...] | None = None
    is_directed: bool = True
    box_weight: float = 1.0
    neighbor_cells: bool = False
    radii: tuple[float, ...] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_factors("box_weight", (self.box_weight,), 1)
        if len(self.bounds) != 6:
            raise InputError(
                f"bounds={self.bounds}: give the lower x, y, z and the upper ones, in meters"
            )
        _ = self.region  # raises unless low < high

    @classmethod
    def networks(cls) -> Sequence[str]:
        return NETWORKS

    @classmethod
    def shares_equally(cls, network: str) -> bool:
        del network
        return True

    @property
    def region(self) -> Region:
        """The region that the network sees: `bounds` and `voxel_size` as one object."""
        return Region(self.bounds[:3], self.bounds[3:], self.voxel_size)

    def preparation(self) -> BoxPreparation:
        low, high, names = self.bounds[:3], self.bounds[3:], self.class_names
        own, given = self.attributes, self.inputs
        return BoxPreparation(names, self.voxel_size, low, high, attributes=own, inputs=given)

    def augmentation(self) -> Callable[[AnnotatedScan, np.random.Generator], AnnotatedScan]:
        return augmented

    def model(self) -> models.CenterDetector:
        channels, classes = self.preparation().num_channels, len(self.class_names)
        shape = {"grid": self.region.grid, "groups": self.groups}
        options = {**shape, **self.computes_in, **self.options}
        if self.network == "small":
            build = functools.partial(models.SmallCenterPoint, width=self.width)
        else:
            build = functools.partial(models.CenterPoint, branches=BRANCHES)
        model = self._made(channels, classes, options, build)
        assert isinstance(model, models.CenterDetector)
        return self.as_its_source(model)

    def _made(
        self, channels: int, classes: int, options: dict[str, Any], build: Any = None
    ) -> nnx.Module:
        """Return this task's network with random weights; see :func:`made` for the arguments.

        `channels` is the number of input channels. If the network does not support the size of the
        voxel grid, the InputError says to change the voxel size or the region.
        """
        try:
            return made(self.network, channels, classes, options, build)
        except InputError as error:
            if "grid" not in str(error):
                raise
            cells = " x ".join(map(str, self.region.grid))
            size = list(self.voxel_size) if isinstance(self.voxel_size, tuple) else self.voxel_size
            why = re.sub(r"^grid=\([^)]*\)|: give a larger grid=$", "", str(error)).strip()
            raise InputError(
                f"voxel_size = {size} cuts the region from {self.bounds[:3]} to "
                f"{self.bounds[3:]} into {cells} voxels, which {self.network} does not take: "
                f"{why}. Give another voxel size, or move the ends of the region"
            ) from error

    def trainer(self, devices: int = 1) -> CenterTrainer:
        looked = self.region, self.groups, len(self.class_names)
        options: dict[str, Any] = {
            "box_weight": self.box_weight,
            "is_directed": self.is_directed,
            "min_radius": MIN_RADIUS,
            "neighbor_cells": self.neighbor_cells,
            "radii": self.radii,
        }
        kinds = CenterTrainer, DataParallelCenterTrainer
        return self.trained_on(devices, *kinds, *looked, **options)

    def tracker(self) -> Callable[[Any, Any], str]:
        def told(labels: Any, prediction: Any) -> str:
            del labels
            heat, box = (float(np.mean(values)) for values in prediction)  # mean of devices
            return f"centers {heat:.2f}  boxes {box:.2f}"

        return told

    def scenes(self, trainer: CenterTrainer, example: Any) -> Iterable[tuple[Any, Any]]:
        found = trainer.detect(example.voxels)
        batched = isinstance(example, Batch)
        places = example.places if batched else [(0, 0)]
        axes = found.scores.ndim - 1  # axes of devices (if several) and scenes
        truths = example.truths if batched else (example.truth,)
        for place, truth in zip(places, truths, strict=True):
            yield truth, self.objects(*(values[place[-axes:]] for values in found))

    def objects(self, boxes: Any, scores: Any, classes: Any, valid: Any) -> Objects:
        """Return the predicted boxes of one scene, with class names and scores.

        The arguments have one row for each box: `boxes` ``[rows, columns]``, `scores`, the class
        numbers `classes`, and the mask `valid`, each ``[rows]``. Rows where `valid` is False are
        left out.
        """
        names = np.asarray(self.class_names)[classes[valid]]
        return Objects(boxes[valid], names, scores[valid])

    def score(self) -> DetectionScore:
        return DetectionScore(self.class_names)
