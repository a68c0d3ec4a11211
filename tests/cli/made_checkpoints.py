"""Checkpoints of networks with random weights, so that tests of results need no training."""

from voxax.cli.folder_detection import FolderDetection
from voxax.cli.segmentation_task import Segmentation
from voxax.models.checkpoint import save_checkpoint

COMMON = {"width": 0.25, "learning_rate": 1e-3, "steps": 2}


def saved(folder, task):
    """The folder, with the task's fresh weights as a checkpoint."""
    description = {"task": task.task, "network": task.to_json(), "step": 0}
    save_checkpoint(folder, task.trainer().tree(), description, 0)
    return folder


def segmenter(folder, class_names, voxel_size=1.0, **more):
    return saved(
        folder, Segmentation(class_names=class_names, voxel_size=voxel_size, **COMMON, **more)
    )


def detector(folder, class_names, metric, bounds, voxel_size=0.5, **more):
    given = {"class_names": class_names, "metric": metric, "bounds": bounds} | more
    return saved(folder, FolderDetection(voxel_size=voxel_size, **COMMON, **given))
