"""Training and evaluation of the SECOND detector: anchor targets, losses and box decoding.

Source: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018, with the
weights of OpenPCDet's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from voxax.detection import (
    KITTI_ANCHORS,
    Anchor,
    AnchorLosses,
    Region,
    anchor_boxes,
    anchor_losses,
    anchor_targets,
)
from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.models.detector_training import DetectorTrainer
from voxax.models.second import SECOND, AnchorHead, AnchorOutput


class AnchorTrainer(DetectorTrainer):
    """Trainer of a :class:`voxax.models.SECOND` detector with a single anchor head.

    A step takes ``(boxes float32[B, M, 7], classes int32[B, M])`` as labels for B scenes of up to M
    boxes. Rows with a negative class are empty. As its prediction, a step returns a tuple of three
    losses: of the classes, of the boxes and of the directions.

    Args:
      model: the detector.
      optimizer: an optax transformation.
      region: range of the points and voxel size. Voxel coordinates count from the range's lower
        corner.
      num_classes: number of classes of the model.
      anchors: anchors, one for each class; None takes the anchors of KITTI's classes.
      box_weight, direction_weight: factors on the box loss and on the direction loss. The factor on
        the class loss is 1.
      code_weights: weights of the 7 residuals of a box in the box loss; None is 1 for all.
      max_candidates, max_boxes, min_score: passed to :func:`voxax.models.found_boxes` as
        ``max_boxes``, ``max_selected`` and ``min_score``.
      axis_name: name of the mapped axis of a program that runs on several devices. Losses are
        averaged and counts of lost rows are summed over the devices. None is for one device.
      keep_programs: as in :class:`voxax.models.training.Trainer`.

    Raises:
      InputError: the anchors do not match the classes and the model, or the model does not have a
        single anchor head.
    """

    def __init__(
        self,
        model: SECOND,
        optimizer: optax.GradientTransformation,
        region: Region,
        num_classes: int,
        *,
        anchors: Sequence[Anchor] | None = None,
        box_weight: float = 2.0,
        direction_weight: float = 0.2,
        code_weights: Sequence[float] | None = None,
        max_candidates: int = 256,
        max_boxes: int = 128,
        min_score: float = 0.1,
        axis_name: str | tuple[str, ...] | None = None,
        keep_programs: bool = True,
    ) -> None:
        if not isinstance(model.head, AnchorHead):
            raise InputError(
                f"AnchorTrainer trains one head of anchors, and no {type(model).__name__}: give a "
                "SECOND, or a CenterPoint to CenterTrainer"
            )
        self.anchors = tuple(KITTI_ANCHORS[:num_classes] if anchors is None else anchors)
        number = sum(len(anchor.yaws) for anchor in self.anchors)
        if len(self.anchors) != num_classes or number != model.anchors:
            raise InputError(
                f"{len(self.anchors)} anchors with {number} yaws for {num_classes} classes and a "
                f"network of {model.anchors} in each cell: give anchors= one of each class, and "
                "make the network with as many anchors as they have yaws"
            )
        self.weights = 1.0, box_weight, direction_weight
        self.code_weights = None if code_weights is None else np.asarray(code_weights, np.float32)
        super().__init__(
            model,
            optimizer,
            region,
            num_classes=num_classes,
            anchors=self.anchors,
            max_boxes=max_candidates,
            max_selected=max_boxes,
            min_score=min_score,
            axis_name=axis_name,
            keep_programs=keep_programs,
        )

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        encoded = module.encode(voxels)
        output = module.predictions(encoded)
        shape, bins = output.classes.shape[1:3], module.direction_bins
        low, high = self.region.low[:2], self.region.high[:2]
        # OpenPCDet's anchors are float32 too; float64 anchors would round other overlaps up.
        places = anchor_boxes(self.anchors, low, high, shape).astype(np.float32)

        def of_scene(output: AnchorOutput, boxes: jax.Array, classes: jax.Array) -> AnchorLosses:
            targets = anchor_targets(boxes, classes, places, self.anchors, direction_bins=bins)
            directions: Any = output.directions  # a single head always has them
            parts = output.classes, output.boxes, directions
            return anchor_losses(*parts, targets, code_weights=self.code_weights)

        losses = jax.vmap(of_scene)(output, *labels)
        parts = [jnp.mean(loss) for loss in losses]
        if self._axis_name is not None:
            parts = jax.lax.pmean(parts, self._axis_name)
        total = sum(weight * part for weight, part in zip(self.weights, parts, strict=True))
        return total, tuple(parts), self._of_all(encoded.num_dropped)

    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        encoded = module.encode(voxels)
        return self._found(module.predictions(encoded), voxels, encoded.geometry)
