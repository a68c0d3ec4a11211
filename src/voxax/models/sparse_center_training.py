"""Training and evaluation of a detector that predicts centers at sparse voxels of the ground.

Source: Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking", CVPR
2023.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from voxax.detection import (
    CenterTargets,
    Region,
    code_loss,
    gaussian_focal_loss,
    sparse_center_targets,
)
from voxax.geometry import Voxels
from voxax.models.centerpoint import HEATMAP
from voxax.models.detector_boxes import box_codes, found_boxes
from voxax.models.detector_training import DetectorTrainer
from voxax.models.voxelnext import VoxelNeXt


class SparseCenterTrainer(DetectorTrainer):
    """Training of a :class:`voxax.models.VoxelNeXt`.

    A step takes ``(boxes float32[B, M, 7 or 9], classes int32[B, M])`` as labels, where rows of a
    negative class are empty. Its prediction is the loss of the heat maps and that of the boxes.

    Args:
      model: the detector; its branches have the velocity where boxes have it.
      optimizer: an optax transformation.
      region: what the model looks at; its voxels are counted from the lower corner.
      num_classes: of all heads.
      box_weight: of the boxes' loss beside that of the heat maps.
      min_radius: see :func:`voxax.detection.sparse_center_targets`.
      max_candidates, max_boxes, min_score: of each group and scene, see
        :func:`voxax.models.found_boxes`, which has ``max_boxes`` as ``max_selected``.
      axis_name: the mapped axis over which losses and lost rows are added up, for programs that run
        on several devices.
      keep_programs: as of :class:`voxax.models.training.Trainer`.
    """

    def __init__(
        self,
        model: VoxelNeXt,
        optimizer: optax.GradientTransformation,
        region: Region,
        num_classes: int,
        *,
        box_weight: float = 0.25,
        min_radius: int = 2,
        max_candidates: int = 256,
        max_boxes: int = 128,
        min_score: float = 0.1,
        axis_name: str | tuple[str, ...] | None = None,
        keep_programs: bool = True,
    ) -> None:
        self.region, self.groups, self.num_classes = region, model.groups, num_classes
        self.box_weight, self.min_radius = box_weight, min_radius
        self.max_candidates, self.max_boxes = max_candidates, max_boxes
        self.min_score = min_score
        self._axis_name = axis_name
        super().__init__(model, optimizer, keep_programs=keep_programs)

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        out = module(voxels)
        ground, (boxes, classes) = out.voxels, labels
        targets = self._targets(ground, boxes, classes)
        # A cell is of one scene, and the others have zeros there.
        heat_map = targets.heatmap.max(axis=0)
        heat, box = jnp.zeros(()), jnp.zeros(())
        for group, head in zip(self.groups, out.groups, strict=True):
            chosen = jnp.asarray(group)
            heat += gaussian_focal_loss(
                head[HEATMAP], heat_map[:, chosen], ground.valid, axis_name=self._axis_name
            )
            found = box_codes(head)[targets.rows]
            mask = targets.mask & (classes[..., None] == chosen).any(axis=-1)
            box += code_loss(found, targets.codes, mask, axis_name=self._axis_name).sum()
        dropped = ground.num_dropped
        if self._axis_name is not None:
            dropped = jax.lax.psum(dropped, self._axis_name)
        return heat + self.box_weight * box, (heat, box), dropped

    def _targets(self, ground: Voxels, boxes: jax.Array, classes: jax.Array) -> CenterTargets:
        stride = ground.stride[0]
        shape = [-(-cells // stride) for cells in self.region.grid[:2]]
        grid = self.region.bev(shape, stride)

        def of_scene(number: jax.Array, own: jax.Array, kinds: jax.Array) -> CenterTargets:
            return sparse_center_targets(
                own,
                kinds,
                ground.coords[:, 1:],
                grid,
                self.num_classes,
                valid=ground.valid & (ground.coords[:, 0] == number),
                min_radius=self.min_radius,
            )

        return jax.vmap(of_scene)(jnp.arange(len(boxes), dtype=jnp.int32), boxes, classes)

    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        out = module(voxels)
        scenes = found_boxes(
            out,
            self.region,
            num_classes=self.num_classes,
            batch_size=voxels.batch_size,
            groups=self.groups,
            max_boxes=self.max_candidates,
            max_selected=self.max_boxes,
            min_score=self.min_score,
        )
        return self._found(scenes, out.voxels.geometry)
