"""The task ``segment``: training of networks that predict a class for each point of a scan."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flax import nnx

from voxax import models
from voxax.cli.published import made, voxel_networks
from voxax.cli.scenes import Batch
from voxax.cli.task import Score, Task, check_factors
from voxax.io import PointCloud
from voxax.io.augment import Transform, compose, flip, rotate_z, scale
from voxax.io.examples import Preparation
from voxax.io.mean_features import MeanFeatures
from voxax.models.lovasz import lovasz_softmax
from voxax.models.metrics import accuracy_by_class, confusion, iou_table, mean_iou
from voxax.models.training import Trainer
from voxax.parallel import DataParallelTrainer

# Channels of the network ``small``: a step with 10k voxels takes 0.3 s on two CPU cores.
PLANES, STEM = (24, 32, 48, 64, 48, 48, 32, 32), 16
# ``small`` is MinkUNet14 with the channels above; the others have the channels of the paper.
NETWORKS = ("small", "MinkUNet14", "MinkUNet18", "MinkUNet34")

_augment = compose([rotate_z, functools.partial(scale, low=0.95, high=1.05), flip])


class ConfusionScore(Score):
    """Base class of scores from a confusion ``matrix``, ``int64[true class, predicted class]``."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.class_names = class_names
        self.matrix = np.zeros((len(class_names), len(class_names)), np.int64)

    def add(self, truth: np.ndarray | None, prediction: np.ndarray) -> None:
        self.matrix += confusion(truth, prediction, len(self.class_names))

    def accuracy(self) -> dict[str, float | None]:
        """Return the recall (share predicted correctly) by class name; None for absent classes."""
        return accuracy_by_class(self.matrix, self.class_names)

    def shares(self) -> dict[str, Any]:
        """Return entries of metrics.json: overall accuracy, accuracy by class and its mean."""
        known = [value for value in self.accuracy().values() if value is not None]
        return {
            "val_accuracy": float(np.trace(self.matrix) / max(self.matrix.sum(), 1)),
            "val_mean_accuracy": float(np.mean(known)) if known else 0.0,
            "val_class_accuracy": self.accuracy(),
        }


class SegmentationScore(ConfusionScore):
    """Score of a segmentation: intersection over union (IoU) over the points of all scenes."""

    figure = "mIoU"

    def value(self) -> float:
        return mean_iou(self.matrix)

    def iou(self) -> dict[str, float | None]:
        """Return the intersection over union by class name; None for absent classes."""
        return iou_table(self.matrix, self.class_names)

    def metrics(self) -> dict[str, Any]:
        own = {"val_miou": self.value(), "val_iou": self.iou()}
        return {**own, **self.shares(), "val_points": int(self.matrix.sum())}

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        recall, rows = self.accuracy(), []
        for (name, value), points in zip(self.iou().items(), self.matrix.sum(1), strict=True):
            figures = ["absent" if v is None else f"{v:.3f}" for v in (value, recall[name])]
            rows.append((name, *figures, f"{points:,}"))
        return ("class", "IoU", "accuracy", "points"), rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Settings of the training of a network that labels the points of clouds.

    Attributes:
      class_weights: weight of each class in the loss; None gives all the same weight.
      lovasz: weight of the Lovász loss, which is added to the cross entropy; 0 for none.
      options: further keyword arguments of the network's class.
    """

    task = "segment"
    title = "MinkUNet"

    class_weights: tuple[float, ...] | None = None
    lovasz: float = 0.0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None:
            check_factors("class_weights", self.class_weights, len(self.class_names))
        check_factors("lovasz", (self.lovasz,), 1)

    @classmethod
    def networks(cls) -> Sequence[str]:
        return (*NETWORKS, *voxel_networks())

    def preparation(self) -> Preparation | MeanFeatures:
        if self.inputs:
            colors = self.signed_colors
            return MeanFeatures(self.voxel_size, self.inputs, signed_colors=colors)
        return Preparation(self.voxel_size, self.attributes)

    def augmentation(self) -> Transform:
        return _augment

    def model(self) -> nnx.Module:
        inputs, classes = self.preparation().num_channels, len(self.class_names)
        if self.network in voxel_networks():
            options = {**self.computes_in, **self.options}
            return self.as_its_source(made(self.network, inputs, classes, options))
        small = self.network == "small"
        channels: dict[str, Any] = {"planes": PLANES, "stem": STEM} if small else {}
        build = models.MinkUNet14 if small else getattr(models, self.network)
        options = {"width": self.width, **channels, **self.computes_in, **self.options}
        return self.as_its_source(made(self.network, inputs, classes, options, build))

    def trainer(self, devices: int = 1) -> Trainer:
        options: dict[str, Any] = {"class_weights": None, "added_loss": None}
        if self.class_weights is not None:
            options["class_weights"] = np.asarray(self.class_weights)
        if self.lovasz:
            options["added_loss"] = lambda *rows, **more: (
                self.lovasz * lovasz_softmax(*rows, **more)
            )
        return self.trained_on(devices, Trainer, DataParallelTrainer, **options)

    def tracker(self) -> Callable[[Any, Any], str]:
        classes = len(self.class_names)
        matrix = np.zeros((classes, classes))

        def told(labels: np.ndarray, prediction: Any) -> str:
            nonlocal matrix
            matrix = 0.95 * matrix + confusion(labels, np.asarray(prediction), classes)
            return f"mIoU {mean_iou(matrix):.2f}"

        return told

    def scenes(self, trainer: Trainer, example: Any) -> Iterable[tuple[Any, Any]]:
        rows = trainer.logits(example.voxels).argmax(-1).reshape(-1)
        batched = isinstance(example, Batch)
        points = example.rows if batched else (example.inverse,)
        truths = example.truths if batched else (example.point_labels,)
        for own, truth in zip(points, truths, strict=True):
            yield truth, rows[own]

    def score(self) -> SegmentationScore:
        return SegmentationScore(self.class_names)


def class_weights(clouds: Sequence[PointCloud], classes: int) -> tuple[float, ...]:
    """Count the labels of `clouds`; return a loss weight per class, see :func:`weights_of`."""
    counts = np.zeros(classes)
    for cloud in clouds:
        if cloud.labels is not None:
            known = (cloud.labels >= 0) & (cloud.labels < classes)
            counts += np.bincount(cloud.labels[known], minlength=classes)
    return weights_of(counts)


def weights_of(counts: np.ndarray) -> tuple[float, ...]:
    """Return a loss weight for each class: the inverse square root of its share, with mean 1.

    `counts` is ``[classes]``, the number of points or clouds of each class.
    """
    weights = 1 / np.sqrt(np.maximum(counts / max(counts.sum(), 1), 1e-3))
    return tuple((weights / weights.mean()).round(4).tolist())
