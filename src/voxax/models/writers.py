"""Writers of training metrics for TensorBoard and W&B, for ``on_metrics`` of a trainer.

The writers read values from the device only at the steps that they write. Other steps do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from voxax.errors import InputError, import_extra

Metrics = Mapping[str, jax.Array | np.ndarray | float]
OnMetrics = Callable[[int, Metrics], None]


class _Writer:
    """Base class of the writers; writes the metrics of each ``every``-th step."""

    def __init__(self, every: int) -> None:
        if every < 1:
            raise InputError(f"every = {every} must be at least 1: a number of steps")
        self._every = every

    def __call__(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of a step if its number is a multiple of ``every``."""
        if step % self._every == 0:
            self.write(step, metrics)

    def write(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of a step, whatever its number."""
        raise NotImplementedError


class TensorBoardWriter(_Writer):
    """Writer of training metrics for TensorBoard, for ``on_metrics`` of a trainer.

    It writes with tensorboardX; ``tensorboard --logdir FOLDER`` shows the metrics.

    Args:
      folder: folder of the event files.
      every: number of steps from one written step to the next.

    Raises:
      InputError: ``every`` is below 1.
      MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 10) -> None:
        super().__init__(every)
        module = import_extra("writing for TensorBoard", "tensorboard", "tensorboardX")
        self._writer = module.SummaryWriter(os.fspath(folder))

    def write(self, step: int, metrics: Metrics) -> None:
        """Write the metrics of a step, also of one that ``every`` would leave out.

        ``metrics`` is a dict from the name of a metric to its scalar value.
        """
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write buffered metrics to disk and close the event file."""
        self._writer.close()


class WandbWriter(_Writer):
    """Writer of training metrics to Weights & Biases, for ``on_metrics`` of a trainer.

    The constructor starts a new run.

    Args:
      every: number of steps from one sent step to the next.
      **options: arguments of ``wandb.init``, such as ``project``, ``name``, ``config``, ``mode``.

    Raises:
      InputError: ``every`` is below 1.
      MissingExtraError: wandb is not installed.
    """

    def __init__(self, every: int = 10, **options: Any) -> None:
        super().__init__(every)
        self._run = import_extra("writing for W&B", "wandb", "wandb").init(**options)

    def write(self, step: int, metrics: Metrics) -> None:
        """Send the metrics of a step, also of one that ``every`` would leave out.

        ``metrics`` is a dict from the name of a metric to its scalar value.
        """
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """End the run in Weights & Biases."""
        self._run.finish()
