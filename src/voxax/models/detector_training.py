"""Base class of the detector trainers, whose evaluation returns boxes."""

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
    """Base class of detector trainers; subclasses define the targets and losses.

    Args:
      model, optimizer, keep_programs: as in :class:`voxax.models.training.StepTrainer`.
      region: range of the points and voxel size. Voxel coordinates count from the range's lower
        corner.
      axis_name: name of the mapped axis over which counts of rows lost to capacity are summed; None
        is for one device.
      search: arguments of :func:`voxax.models.found_boxes` for the evaluation.
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
        """Decode the module's ``output`` to boxes; return them, and the counts of lost rows.

        The boxes are one ``Detections`` with arrays ``[B, N, ...]`` for the B scenes of ``voxels``.
        The counts of rows lost to capacity are those in ``geometry``, summed over the devices.
        """
        options = {"batch_size": voxels.batch_size, **self._search}
        scenes = found_boxes(output, self.region, **options)
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *scenes)
        drops = geometry.drops
        return stacked, drops if self._axis_name is None else drops.summed_over(self._axis_name)

    def _of_all(self, dropped: jax.Array) -> jax.Array:
        """Return the sum over all devices of ``dropped``, the number of rows lost to capacity."""
        return dropped if self._axis_name is None else jax.lax.psum(dropped, self._axis_name)

    def _counted(self, counts: Any) -> jax.Array:
        return counts

    def detect(self, voxels: Voxels) -> Detections:
        """Return the boxes found in B scenes, as NumPy arrays ``[B, N, ...]``.

        Raises:
          CapacityError: voxels were lost because the capacity of some level is too small.
        """
        return jax.device_get(self.evaluate(voxels))
