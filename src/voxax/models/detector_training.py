"""What the trainers of all detectors have in common: their evaluation finds boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from voxax.detection import Detections
from voxax.geometry import VoxelGeometry, Voxels
from voxax.models.training import StepTrainer


class DetectorTrainer(StepTrainer):
    """Training of a detector; subclasses have the targets and losses.

    Attributes:
      _axis_name: the mapped axis over which lost rows are added up, or None; set by subclasses.
    """

    _axis_name: str | tuple[str, ...] | None

    def _found(self, scenes: Sequence[Any], geometry: VoxelGeometry) -> tuple[Any, Any]:
        """Return what an evaluation does: the boxes of all scenes, and lost rows by level."""
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *scenes)
        drops = geometry.drops
        return stacked, drops if self._axis_name is None else drops.summed_over(self._axis_name)

    def _counted(self, counts: Any) -> jax.Array:
        return counts

    def detect(self, voxels: Voxels) -> Detections:
        """Return what is found in each scene, on the host: arrays ``[B, N, ...]``.

        Raises:
          CapacityError: rows were lost at some level.
        """
        return jax.device_get(self.evaluate(voxels))
