"""Writers of a training's numbers, for ``on_metrics`` of a trainer: TensorBoard and W&B.

Both read values from the device only at the steps that they write: in between, steps are not
waited for.
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
    """Writes the numbers of every so many steps."""

    def __init__(self, every: int) -> None:
        if every < 1:
            raise InputError(f"every = {every} must be at least 1: a number of steps")
        self._every = every

    def __call__(self, step: int, metrics: Metrics) -> None:
        """Write the numbers of a step, if it is one to write."""
        if step % self._every == 0:
            self.write(step, metrics)

    def write(self, step: int, metrics: Metrics) -> None:
        """Write numbers, whatever the step."""
        raise NotImplementedError


class TensorBoardWriter(_Writer):
    """Writes numbers for TensorBoard, by tensorboardX: ``tensorboard --logdir FOLDER`` shows them.

    Args:
      folder: for the event files.
      every: steps between written ones.

    Raises:
      InputError: ``every`` is below 1.
      MissingExtraError: tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 10) -> None:
        super().__init__(every)
        module = import_extra("writing for TensorBoard", "tensorboard", "tensorboardX")
        self._writer = module.SummaryWriter(os.fspath(folder))

    def write(self, step: int, metrics: Metrics) -> None:
        """Write numbers, whatever the step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write what is not yet on disk."""
        self._writer.close()


class WandbWriter(_Writer):
    """Sends numbers to Weights & Biases, as a run of its own.

    Args:
      every: steps between written ones.
      **options: of ``wandb.init``, such as ``project``, ``name``, ``config`` and ``mode``.

    Raises:
      InputError: ``every`` is below 1.
      MissingExtraError: wandb is not installed.
    """

    def __init__(self, every: int = 10, **options: Any) -> None:
        super().__init__(every)
        self._run = import_extra("writing for W&B", "wandb", "wandb").init(**options)

    def write(self, step: int, metrics: Metrics) -> None:
        """Send numbers, whatever the step."""
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
