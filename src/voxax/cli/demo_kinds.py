"""What ``voxax demo`` does differently for each task: defaults, scenes, network and pictures.

For detection, there is also a baseline without learning: a box around each cluster of points.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import ndimage

from voxax.cli.detection_task import Detection, DetectionScore
from voxax.cli.scenes import Scenes, near_origin, simulated
from voxax.cli.segmentation_task import Segmentation, SegmentationScore, class_weights
from voxax.cli.task import Score, Task
from voxax.detection import Objects
from voxax.hardware import HardwareInfo
from voxax.io import PointCloud, write_ply
from voxax.io.annotated import AnnotatedScan
from voxax.io.box_file import FOUND, TRUE, write_boxes
from voxax.io.ground import height_above_ground
from voxax.plot import detection_html, detection_png, segmentation_html, segmentation_png

VALIDATION = 8  # number of simulated streets for validation

# Smallest and largest width of the network; it is chosen in steps of 0.25.
NARROWEST, WIDEST = 0.5, 4.0
# On two cores the network of width 1 is trained in about two minutes.
CORES_AT_WIDTH_1 = 2
# At width 1 the demo peaks at 1.4 GB (AMD EPYC, JAX 0.10.2); the rest is for other programs. It is
# a part of the total memory, because free memory changes between runs, which should not differ.
BYTES_PER_WIDTH = 4 << 30


def width_for(info: HardwareInfo) -> float:
    """Return the factor on the network's channels for a machine, from its cores and memory.

    | machine | width |
    |---|---|
    | CPU | ``sqrt(cores / 2)``: a step's arithmetic grows with the square of the width |
    | accelerator | 2 |
    | any | at most 1 for each 4 GiB of memory; from 0.5 to 4, in steps of 0.25 |
    """
    width = math.sqrt(info.cpu_cores / CORES_AT_WIDTH_1) if info.platform == "cpu" else 2.0
    if info.memory_bytes is not None:
        width = min(width, info.memory_bytes / BYTES_PER_WIDTH)
    return min(max(math.floor(4 * width) / 4, NARROWEST), WIDEST)


def dtype_for(info: HardwareInfo) -> str:
    """Return the name of the dtype in which layers compute: bfloat16 on TPUs, else float32."""
    return "bfloat16" if info.platform == "tpu" else "float32"


@dataclasses.dataclass(frozen=True)
class DemoKind(abc.ABC):
    """Base class of the demo of one task: its scenes, settings and pictures.

    `kind` is the class of the task. The other fields are the default values of the options of
    ``voxax demo`` that have the same names.
    """

    kind: ClassVar[type[Task]]

    steps: int = 160
    scenes: int = 48
    voxel_size: float = 0.3
    learning_rate: float = 6e-3
    sensor: str = "lidar32"

    @abc.abstractmethod
    def streets(self, seed: int) -> Scenes:
        """Return the training and validation streets, as tasks that simulate them when called.

        `seed` selects the training streets. The validation streets are always the same.
        """

    @abc.abstractmethod
    def task(
        self, samples: Sequence[Any], names: tuple[str, ...], width: float, dtype: str = "float32"
    ) -> Task:
        """Return the settings of the training of a network for the classes `names`.

        `samples` are training scenes, for example to count the points of each class. `width` is the
        factor on the network's channels, and `dtype` the name of the type in which its layers
        compute.
        """

    def compare(self, task: Any, score: Score, train: Sequence[Any], scenes: Sequence[Any]) -> None:
        """Score a simpler method on `scenes`, and store the result in `score` as its baseline.

        `task` has the settings of the trained network. The method may learn from the scenes
        `train`. By default nothing is stored.
        """
        del task, score, train, scenes

    @abc.abstractmethod
    def pictures(
        self, out: Path, task: Any, scene: Any, prediction: Any, score: Score, title: str
    ) -> None:
        """Write ``demo.png`` and ``demo.html`` to `out`: a validation scene and its prediction.

        Both have the title `title` and show the validation score `score`. `task` has the settings
        of the trained network.
        """

    def _common(self, names: tuple[str, ...], width: float, dtype: str) -> dict[str, Any]:
        return {
            "class_names": names,
            "voxel_size": self.voxel_size,
            "width": width,
            "dtype": dtype,
            "learning_rate": self.learning_rate,
            "steps": self.steps,
        }

    def _summary(self, task: Task, score: Score) -> dict[str, object]:
        return {
            f"validation {score.figure}": f"{score.value():.3f}",
            "training steps": self.steps,
            "voxel size": f"{task.voxel_size} m",
        }


@dataclasses.dataclass(frozen=True)
class SegmentDemo(DemoKind):
    """Demo of the task ``segment``, which predicts a class for each point."""

    kind = Segmentation

    def streets(self, seed: int) -> Scenes:
        return simulated(self.scenes, VALIDATION, self.sensor, seed)

    def task(
        self,
        samples: Sequence[PointCloud],
        names: tuple[str, ...],
        width: float,
        dtype: str = "float32",
    ) -> Segmentation:
        weights = class_weights(samples, len(names))
        return Segmentation(class_weights=weights, **self._common(names, width, dtype))

    def pictures(
        self,
        out: Path,
        task: Segmentation,
        scene: PointCloud,
        prediction: Any,
        score: Score,
        title: str,
    ) -> None:
        assert isinstance(score, SegmentationScore)
        iou, names = score.iou(), task.class_names
        drawn = near_origin(scene.positions), prediction, scene.labels, names
        told = f"{task.title}, {self.steps} steps, validation mIoU {score.value():.2f}"
        segmentation_png(out / "demo.png", *drawn, title=title, subtitle=told, iou=iou)
        summary = self._summary(task, score) | {"validation scenes": VALIDATION}
        segmentation_html(out / "demo.html", *drawn, title=title, summary=summary, iou=iou)


# The ground of the streets lies between -1 and 1 m in this region; poles are up to 10 m high.
BOUNDS = (-19.2, -19.2, -2.0, 19.2, 19.2, 4.4)
BOXED = ("vehicle", "pole", "person")
# Boxes around one pole or person are thin, lie in any direction, and hardly overlap.
RADII = (0.0, 0.8, 0.5)


@dataclasses.dataclass(frozen=True)
class DetectDemo(DemoKind):
    """Demo of the task ``detect``, which predicts the boxes of objects."""

    kind = Detection

    steps: int = 1500
    scenes: int = 96
    voxel_size: float = 0.2
    sensor: str = "lidar64"

    def streets(self, seed: int) -> Scenes:
        return simulated(self.scenes, VALIDATION, self.sensor, seed, BOXED)

    def task(
        self,
        samples: Sequence[AnnotatedScan],
        names: tuple[str, ...],
        width: float,
        dtype: str = "float32",
    ) -> Detection:
        del samples
        # Vehicles have their own head, because poles and persons are far more frequent. Boxes have
        # no direction: front and rear of a vehicle look alike, and poles have neither. Cells beside
        # the cell of a box's center learn too, because there are few steps.
        return Detection(
            bounds=BOUNDS,
            groups=((0,), (1, 2)),
            is_directed=False,
            neighbor_cells=True,
            radii=RADII,
            box_weight=2.0,
            **self._common(names, width, dtype),
        )

    def compare(
        self,
        task: Detection,
        score: Score,
        train: Sequence[AnnotatedScan],
        scenes: Sequence[AnnotatedScan],
    ) -> None:
        assert isinstance(score, DetectionScore)
        preparation, baseline = task.preparation(), task.score()
        sizes = known_sizes([preparation.truth(scan.objects) for scan in train], task.class_names)
        for scan in scenes:
            found = cluster_boxes(preparation.inside(scan.cloud).positions, sizes)
            baseline.add(preparation.truth(scan.objects), found)
        score.baseline = baseline

    def pictures(
        self,
        out: Path,
        task: Detection,
        scene: AnnotatedScan,
        prediction: Objects,
        score: Score,
        title: str,
    ) -> None:
        assert isinstance(score, DetectionScore)
        preparation = task.preparation()
        truth, cloud = preparation.truth(scene.objects), preparation.inside(scene.cloud)
        ap = {name: f"AP {values[0.5]:.2f}" for name, values in score.ap().items()}
        write_boxes(out / FOUND, prediction)
        write_boxes(out / TRUE, truth)
        write_ply(out / "demo.ply", cloud.positions, labels=cloud.labels)
        drawn = cloud.positions, prediction, truth, task.class_names
        told = f"{task.title}, {self.steps} steps, validation mAP {score.value():.2f}"
        detection_png(out / "demo.png", *drawn, title=title, subtitle=f"{told}; AP at 0.5 m", ap=ap)
        summary = self._summary(task, score) | {"validation scenes": VALIDATION}
        if score.baseline is not None:
            summary["mAP of boxes around clusters of points"] = f"{score.baseline.value():.3f}"
        summary |= {f"AP of {name} at 0.5 m": f"{own[0.5]:.3f}" for name, own in score.ap().items()}
        detection_html(out / "demo.html", *drawn, title=title, summary=summary)


KINDS: dict[str, type[DemoKind]] = {"segment": SegmentDemo, "detect": DetectDemo}


LOWEST = 0.3
"""Smallest height above ground of points that :func:`cluster_boxes` uses, in meters."""
CELL = 0.3
"""Side of the square cells that :func:`cluster_boxes` joins to clusters, in meters."""
MIN_POINTS = 10
LEAST_SPREAD = 0.4
"""Lower limit of a class's standard deviation of log sizes, as a sensor sees only one side."""


def known_sizes(truths: Sequence[Objects], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the log sizes of the true boxes of each class, ``float[boxes, 3]`` by class name.

    The columns are the logarithms of length, width and height. `truths` has the true boxes of each
    training scene, `names` the names of the classes. Classes without a box are left out.
    """
    rows = {
        name: np.concatenate([truth.boxes[truth.classes == name, 3:6] for truth in truths])
        for name in names
    }
    return {name: np.log(sizes) for name, sizes in rows.items() if len(sizes)}


def cluster_boxes(positions: np.ndarray, sizes: Mapping[str, np.ndarray]) -> Objects:
    """Return a box around each cluster of points above the ground, with a class and a score.

    The ground plane is cut into square cells. Cells with points that touch at a side or corner form
    a cluster. A box is aligned with the main axis of its cluster's points. Its class is the most
    likely one for its size, if the logarithms of sizes are normally distributed. Its score falls
    with the distance from that class's mean size. Boxes more than twice as long or wide as the mean
    of every class, and clusters of fewer than ``MIN_POINTS`` points, are left out.

    Args:
      positions: ``float[N, 3]``, the points in meters, z up.
      sizes: the logarithms of sizes of each class, from `known_sizes`.
    """
    above = positions[height_above_ground(positions) > LOWEST]
    if not len(above) or not sizes:
        return Objects([], [], [])
    index = np.floor((above[:, :2] - above[:, :2].min(axis=0)) / CELL).astype(np.int64)
    occupied = np.zeros(index.max(axis=0) + 1, bool)
    occupied[tuple(index.T)] = True
    labels = np.zeros(occupied.shape, np.int32)
    ndimage.label(occupied, np.ones((3, 3)), output=labels)
    cluster = labels[tuple(index.T)]
    order = np.argsort(cluster, kind="stable")
    bounds = np.searchsorted(cluster[order], np.arange(1, labels.max() + 2))
    mean = np.stack([rows.mean(axis=0) for rows in sizes.values()])
    spread = np.stack([np.maximum(rows.std(axis=0), LEAST_SPREAD) for rows in sizes.values()])
    boxes, classes, scores = [], [], []
    for begin, end in itertools.pairwise(bounds.tolist()):
        if end - begin < MIN_POINTS:
            continue
        box = _around(above[order[begin:end]])
        size = np.log(box[3:6])
        if (size[:2] - np.log(2) > mean[:, :2].max(axis=0)).any():
            continue
        squared = np.sum(((size - mean) / spread) ** 2, axis=1)
        best = int(np.argmin(0.5 * squared + np.log(spread).sum(axis=1)))
        boxes.append(box)
        classes.append(list(sizes)[best])
        scores.append(np.exp(-0.5 * np.sqrt(squared[best])))
    return Objects(boxes, classes, scores)


def _around(points: np.ndarray) -> np.ndarray:
    """Return the box of N points ``[N, 3]``: center, size and yaw in radians, ``float[7]``.

    The box is aligned with the main horizontal axis of the points, and reaches down to the ground.
    """
    plan = points[:, :2] - points[:, :2].mean(axis=0)
    along = np.linalg.eigh(plan.T @ plan)[1][:, 1]
    axes = np.stack([along, [-along[1], along[0]]])
    turned = plan @ axes.T
    low, high = turned.min(axis=0), turned.max(axis=0)
    center = points[:, :2].mean(axis=0) + 0.5 * (low + high) @ axes
    bottom, top = points[:, 2].min() - LOWEST, points[:, 2].max()
    size = np.maximum([*(high - low), top - bottom], 0.1)
    return np.array([*center, 0.5 * (bottom + top), *size, np.arctan2(along[1], along[0])])
