"""Load the network of a checkpoint and run it on scenes, for the commands that predict."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from voxax.cli.detection_task import Detection
from voxax.cli.tasks import check_weights, plan_of, restore, task_as, task_of
from voxax.detection import Objects
from voxax.errors import InputError
from voxax.geometry import Plan
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan


class Trained:
    """Network of a checkpoint, ready to predict scenes.

    The plan of the network's kernel maps is made for the first predicted scene, and reused for
    later scenes.

    Args:
      checkpoint: the folder of the checkpoint.
      kind: subclass of :class:`Task` that the checkpoint's task must have; None allows any task.
    """

    def __init__(self, checkpoint: Path, kind: Any = None) -> None:
        self.task: Any = task_of(checkpoint) if kind is None else task_as(checkpoint, kind)
        check_weights(checkpoint, self.task)
        self.checkpoint, self.class_names = checkpoint, self.task.class_names
        self.voxel_size = self.task.longest_edge
        self.preparation = self.task.preparation()
        self.trainer: Any = restore(checkpoint, self.task.trainer())
        self._plan: Plan | None = None
        self.num_voxels = 0  # of the last scene

    def example(self, scene: Any) -> Any:
        """Return a scene as the network's input: an example whose voxels have kernel maps."""
        example = self.preparation(scene)
        self.num_voxels = int(example.voxels.count)
        if self._plan is None:
            self._plan = plan_of(self.trainer.model(), example.voxels, self.checkpoint)
        capacity = self._plan.capacity(self.num_voxels)
        voxels = self._plan.attach(example.voxels, capacity=capacity)
        return dataclasses.replace(example, voxels=voxels)

    def logits(self, cloud: PointCloud) -> np.ndarray:
        """Return the segmentation logits for the N points of a cloud, ``float32[N, classes]``."""
        example = self.example(cloud)
        return self.trainer.logits(example.voxels)[example.inverse]

    def predict(self, scene: Any) -> tuple[Any, Any]:
        """Return ``(truth, prediction)`` of a scene, the arguments of :meth:`Score.add`."""
        ((truth, prediction),) = self.task.scenes(self.trainer, self.example(scene))
        return truth, prediction


class TrainedDetector(Trained):
    """Network of a checkpoint that was trained for the task ``detect``."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint, Detection)

    def check(self, cloud: PointCloud) -> None:
        """Raise :class:`voxax.InputError` if no point of `cloud` lies in the detector's region."""
        if not len(self.preparation.inside(cloud)):
            positions = cloud.positions
            low, high = (end.round(1).tolist() for end in (positions.min(0), positions.max(0)))
            raise InputError(
                f"{cloud.source or 'the scan'} has no points in the region that the network looks "
                f"at, {self.task.bounds}; they span {low} to {high}, in meters with z up"
            )

    def __call__(self, cloud: PointCloud) -> Objects:
        """Return the boxes predicted for a scan; none if no point lies in the detector's region."""
        if not len(self.preparation.inside(cloud)):
            return Objects([], [])
        return self.predict(AnnotatedScan(cloud, Objects([], [])))[1]
