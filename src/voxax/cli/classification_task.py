"""The task ``classify``: training of networks that predict one class for a whole point cloud."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flax import nnx

from voxax.cli.published import made, voxel_networks
from voxax.cli.scenes import Batch, SceneExample
from voxax.cli.segmentation_task import ConfusionScore
from voxax.cli.task import Task, check_factors
from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.augment import Transform, compose, flip, rotate_z
from voxax.io.examples import Preparation
from voxax.models.classifier import SceneTrainer, VoxelEncoder
from voxax.models.minkunet import BLOCKS
from voxax.parallel.trainer import DataParallelSceneTrainer

# A step over a hundred clouds of a thousand voxels takes a second on two CPU cores.
CHANNELS, STEM = (24, 32, 48, 64), 16
# Classifiers that use only the encoder of a MinkUNet.
ENCODERS = {f"MinkUNet{depth}": {"blocks": BLOCKS[depth][:4]} for depth in (14, 18, 34)}


class ClassPreparation(Preparation):
    """Function that turns a cloud, whose points all have one label, into a training example."""

    def __call__(self, cloud: PointCloud, height: np.ndarray | None = None) -> SceneExample:  # type: ignore[override]
        """Return the training example of a cloud, with the cloud's class as label ``int32[1]``.

        The label of a cloud without labels is -1. `height` has the height of each of the N points
        above ground, ``[N]``; None estimates it.

        Raises:
          InputError: the points do not all have one label.
        """
        example = super().__call__(cloud, height)
        found = np.full(1, -1, np.int32) if cloud.labels is None else np.unique(cloud.labels)
        if len(found) != 1:
            raise InputError(
                f"{cloud.source or 'a cloud'} has points of the classes {found[:6].tolist()}: to "
                "classify a cloud as a whole, all its points have the same"
            )
        return SceneExample(example.voxels, found.astype(np.int32), found.astype(np.int32))


class ClassificationScore(ConfusionScore):
    """Accuracy of a classifier: the share of clouds whose class is predicted correctly."""

    figure = "accuracy"

    def value(self) -> float:
        return self.shares()["val_accuracy"]

    def metrics(self) -> dict[str, Any]:
        return {**self.shares(), "val_clouds": int(self.matrix.sum())}

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        rows = [
            (name, "absent" if value is None else f"{value:.3f}")
            for name, value in self.accuracy().items()
        ]
        return ("class", "accuracy"), rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Settings of the training of a network that predicts one class for each cloud.

    For `class_weights` and `options` see :class:`voxax.cli.segmentation_task.Segmentation`.
    """

    task = "classify"
    title = "Classifier"

    class_weights: tuple[float, ...] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None:
            check_factors("class_weights", self.class_weights, len(self.class_names))

    @classmethod
    def networks(cls) -> Sequence[str]:
        return ("small", *ENCODERS, *voxel_networks())

    def preparation(self) -> ClassPreparation:
        return ClassPreparation(self.voxel_size, self.attributes)

    def augmentation(self) -> Transform:
        return compose([rotate_z, flip])

    def model(self) -> nnx.Module:
        inputs, classes = self.preparation().num_channels, len(self.class_names)
        if self.network in voxel_networks():
            options = {**self.computes_in, **self.options}
            return self.as_its_source(made(self.network, inputs, classes, options))
        sizes: dict[str, Any] = ENCODERS.get(self.network, {})
        if self.network == "small":
            wide = [4 * max(round(c * self.width / 4), 1) for c in (STEM, *CHANNELS)]
            sizes = {"blocks": (1,) * 4, "channels": wide[1:], "stem": wide[0]}
        options = {**sizes, **self.computes_in, **self.options}
        return made(self.network, inputs, classes, options, VoxelEncoder)

    def trainer(self, devices: int = 1) -> SceneTrainer:
        kinds = SceneTrainer, DataParallelSceneTrainer
        return self.trained_on(devices, *kinds, self.class_weights)

    def tracker(self) -> Callable[[Any, Any], str]:
        right, number = 0.0, 0.0

        def told(labels: np.ndarray, prediction: Any) -> str:
            nonlocal right, number
            known = labels >= 0
            right = 0.95 * right + float((np.asarray(prediction) == labels)[known].sum())
            number = 0.95 * number + float(known.sum())
            return f"accuracy {right / max(number, 1e-6):.2f}"

        return told

    def scenes(self, trainer: SceneTrainer, example: Any) -> Iterable[tuple[Any, Any]]:
        rows = np.asarray(trainer.evaluate(example.voxels)).argmax(-1)
        batched = isinstance(example, Batch)
        places = example.places if batched else [(0, 0)]
        truths = example.truths if batched else (example.truth,)
        for place, truth in zip(places, truths, strict=True):
            yield truth, rows[place[-rows.ndim :]][None]

    def score(self) -> ClassificationScore:
        return ClassificationScore(self.class_names)
