"""Base class of the trainers of detectors: evaluation returns boxes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from voxax.detection import Detections, Region
from voxax.geometry import VoxelGeometry, Voxels
from voxax.models.detector_boxes import found_boxes
from voxax.models.training import StepTrainer


class DetectorTrainer(StepTrainer):
    """Training of a detector; subclasses define the targets and losses.

    Args:
      model, optimizer, keep_programs: as in :class:`voxax.models.training.StepTrainer`.
      region: range of the points and size of the voxels. Coordinates of voxels begin with 0 at its
        lower corner.
      axis_name: mapped axis over which lost rows are added up, or None.
      search: other arguments of :func:`voxax.models.found_boxes`.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        region: Region,
        *,
        axis_name: str | tuple[str, ...] | None,
        keep_programs: bool,
        **search: Any,
    ) -> None:
        self.region, self._axis_name, self._search = region, axis_name, search
        super().__init__(model, optimizer, keep_programs=keep_programs)

    def _found(self, output: Any, voxels: Voxels, geometry: VoxelGeometry) -> tuple[Any, Any]:
        """Return the result of an evaluation: the boxes of all scenes, and lost rows by level."""
        options = {"batch_size": voxels.batch_size, **self._search}
        scenes = found_boxes(output, self.region, **options)
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *scenes)
        drops = geometry.drops
        return stacked, drops if self._axis_name is None else drops.summed_over(self._axis_name)

    def _of_all(self, dropped: jax.Array) -> jax.Array:
        """Return the number of lost rows over all shards."""
        return dropped if self._axis_name is None else jax.lax.psum(dropped, self._axis_name)

    def _counted(self, counts: Any) -> jax.Array:
        return counts

    def detect(self, voxels: Voxels) -> Detections:
        """Return the boxes found in each of B scenes, on the host: arrays ``[B, N, ...]``.

        Raises:
          CapacityError: rows were lost at some level.
        """
        return jax.device_get(self.evaluate(voxels))
