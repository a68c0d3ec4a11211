"""Decode the outputs of voxax's detectors to boxes, and remove duplicate boxes.

The default thresholds are those of OpenPCDet's configurations.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from voxax.detection import (
    KITTI_ANCHORS,
    NUSCENES_ANCHORS,
    Anchor,
    Detections,
    Region,
    anchor_boxes,
    circle_nms,
    decode_anchors,
    decode_cells,
    decode_centers,
    nms,
)
from voxax.errors import InputError
from voxax.models.centerpoint import HEATMAP, CenterPoint, Groups, class_groups
from voxax.models.second import SECOND, AnchorOutput
from voxax.models.voxelnext import VoxelNeXt, VoxelNeXtOutput

Output = AnchorOutput | Sequence[AnchorOutput] | VoxelNeXtOutput | Sequence[Mapping[str, jax.Array]]

DETECTORS = (SECOND, CenterPoint, VoxelNeXt)
"""Networks whose outputs :func:`found_boxes` accepts."""
# Parts of a box code, in order. A head may instead return the whole code in one array, `code`.
CODE = ("code", "center", "center_z", "dim", "rot", "vel")


def found_boxes(
    output: Output,
    region: Region,
    *,
    num_classes: int,
    batch_size: int = 1,
    groups: Groups | None = None,
    anchors: Sequence[Anchor] | None = None,
    max_boxes: int = 500,
    max_selected: int = 100,
    min_score: float = 0.1,
    iou_threshold: float | None = None,
    radii: Sequence[float] | None = None,
) -> list[Detections]:
    """Decode a detector's output to the boxes of each scene, highest score first.

    Non-maximum suppression compares the best ``max_boxes`` candidates of each group of classes with
    each other, across classes, and keeps at most ``max_selected``. With several anchor heads the
    suppression runs for each class separately. Thin and round objects need ``radii``, because
    boxes of different yaws around the same pole hardly overlap. The function also works inside
    ``jit``.

    Args:
      output: output of :class:`SECOND`, :class:`MultiHeadSECOND`, :class:`CenterPoint` or
        :class:`VoxelNeXt`. The values in padding rows have no effect.
      region: range of the points and voxel size. Voxel coordinates count from the range's lower
        corner.
      num_classes: number of classes of the network.
      batch_size: number of scenes.
      groups: class numbers of each head; None is one head for all classes.
      anchors: anchors of an anchor-based network, one for each class. None takes the anchors of
        KITTI's classes, or of nuScenes' classes if the network has several heads.
      max_boxes: number of candidates in each group and scene.
      max_selected: largest number of boxes in each group and scene.
      min_score: lowest score of a candidate, in 0..1.
      iou_threshold: a box is removed if its IoU with a better box, seen from above, is larger. None
        is 0.01 for a single anchor head, else 0.2.
      radii: radius for each class of a center-based network, in meters. A box is removed if its
        center lies within the radius of a better box of its group; see
        :func:`voxax.detection.circle_nms`. With None, or a radius of 0 in the group, the overlap
        decides instead.

    Raises:
      InputError: ``groups`` do not have each class once, ``anchors`` are not those of the network,
        or ``output`` is not that of a detector.
    """
    if isinstance(output, AnchorOutput):
        threshold = 0.01 if iou_threshold is None else iou_threshold
        scenes = [
            [_of_anchors(output, scene, region, num_classes, anchors, max_boxes, min_score)]
            for scene in range(batch_size)
        ]
    else:
        threshold = 0.2 if iou_threshold is None else iou_threshold
        sparse = isinstance(output, VoxelNeXtOutput)
        found = output.groups if sparse else output
        chosen = class_groups(groups, num_classes)
        check_radii(radii, num_classes)
        if len(found) != len(chosen):
            raise InputError(
                f"groups={chosen} are {len(chosen)}, the network has {len(found)}: give groups= as "
                "it was made with"
            )
        scenes = []
        for scene in range(batch_size):
            own = []
            for classes, head in zip(chosen, found, strict=True):
                if isinstance(head, AnchorOutput):
                    for c, one, boxes in _classes_apart(head, classes, num_classes, anchors):
                        rows = _of_anchors(one, scene, region, 1, boxes, max_boxes, min_score)
                        own.append(_named(rows, (c,)))
                elif sparse:
                    rows = _of_cells(output, head, scene, region, max_boxes, min_score)
                    own.append(_named(rows, classes))
                else:
                    rows = _of_map(head, scene, region, max_boxes, min_score)
                    own.append(_named(rows, classes))
            scenes.append(own)
        if isinstance(found[0], AnchorOutput):
            chosen = [(c,) for group in chosen for c in group]
    kept = functools.partial(_suppressed, threshold=threshold, number=max_selected)
    if radii is None or isinstance(output, AnchorOutput):
        return [_joined([kept(boxes) for boxes in own]) for own in scenes]
    circles = [radii if all(radii[c] > 0 for c in group) else None for group in chosen]
    return [_joined([kept(g, r) for g, r in zip(own, circles, strict=True)]) for own in scenes]


def check_radii(radii: Sequence[float] | None, num_classes: int) -> None:
    """Raise InputError unless ``radii`` is None or has a finite number >= 0 for each class."""
    if radii is None:
        return
    if len(radii) != num_classes or not all(0 <= radius < float("inf") for radius in radii):
        raise InputError(
            f"radii={tuple(radii)} for {num_classes} classes: give one of each in meters, 0 to "
            "suppress by overlap"
        )


def box_codes(head: Mapping[str, jax.Array]) -> jax.Array:
    """Join the quantities that a head predicts to box codes, ``[..., 8]`` or ``[..., 10]``.

    Args:
      head: arrays ``[..., channels]`` by name, as :class:`voxax.models.CenterHead` returns them.
    """
    return jnp.concatenate([head[name] for name in CODE if name in head], axis=-1)


def _named(boxes: Detections, classes: Sequence[int]) -> Detections:
    """Return ``boxes`` with each class index ``i`` of a head replaced by ``classes[i]``.

    ``classes`` are the class numbers of the head. Rows that are not valid get class -1.
    """
    numbers = jnp.asarray(classes, jnp.int32)[boxes.classes]
    return boxes._replace(classes=jnp.where(boxes.valid, numbers, -1))


def _classes_apart(
    head: AnchorOutput, classes: Sequence[int], num_classes: int, anchors: Sequence[Anchor] | None
) -> Iterator[tuple[int, AnchorOutput, tuple[Anchor, ...]]]:
    """Split the output of an anchor head by class: yield ``(class number, output, anchors)``.

    ``classes`` are the class numbers of the head. Each yielded output is ``head`` with the logits
    of one class only, and the boxes of all its anchors. The yielded anchors are the same each time:
    those in ``anchors`` for the classes of the head. ``anchors`` has one entry for each of the
    network's ``num_classes`` classes; None takes nuScenes' anchors.
    """
    given = NUSCENES_ANCHORS[:num_classes] if anchors is None else tuple(anchors)
    if len(given) != num_classes:
        raise InputError(f"{len(given)} anchors for {num_classes} classes: give one of each")
    own = tuple(given[c] for c in classes)
    logits = head.classes
    for place, c in enumerate(classes):
        yield c, head._replace(classes=logits[..., place :: len(classes)]), own


def _of_map(
    head: Mapping[str, jax.Array], scene: int, region: Region, number: int, score: float
) -> Detections:
    logits, codes = head[HEATMAP][scene], box_codes(head)[scene]
    grid = region.bev(logits.shape[:2])
    return decode_centers(logits, codes, grid, max_boxes=number, min_score=score)


def _of_cells(
    output: VoxelNeXtOutput,
    head: Mapping[str, jax.Array],
    scene: int,
    region: Region,
    number: int,
    score: float,
) -> Detections:
    voxels = output.voxels
    stride = voxels.stride[0]
    shape = [-(-cells // stride) for cells in region.grid[:2]]
    return decode_cells(
        head[HEATMAP],
        box_codes(head),
        voxels.coords[:, 1:],
        region.bev(shape, stride),
        max_boxes=number,
        min_score=score,
        valid=voxels.valid & (voxels.coords[:, 0] == scene),
    )


def _of_anchors(
    output: AnchorOutput,
    scene: int,
    region: Region,
    num_classes: int,
    anchors: Sequence[Anchor] | None,
    number: int,
    score: float,
) -> Detections:
    anchors = KITTI_ANCHORS[:num_classes] if anchors is None else anchors
    shape = output.classes.shape[1:3]
    places = anchor_boxes(anchors, region.low[:2], region.high[:2], shape)
    if output.classes.shape[-1] != places.shape[2] * num_classes:
        raise InputError(
            f"{len(anchors)} anchors make {places.shape[2]} in each cell, the network has "
            f"{output.classes.shape[-1] / num_classes:g} for {num_classes} classes: give the "
            "anchors= that it was trained with"
        )
    return decode_anchors(
        output.classes[scene],
        output.boxes[scene],
        None if output.directions is None else output.directions[scene],
        places.astype(output.boxes.dtype),
        max_boxes=number,
        min_score=score,
    )


def _suppressed(
    boxes: Detections, radii: Sequence[float] | None = None, *, threshold: float, number: int
) -> Detections:
    rows: Any = boxes.boxes, boxes.scores
    common: Any = {"max_selected": number, "valid": boxes.valid}
    if radii is None:
        kept = nms(*rows, iou_threshold=threshold, **common)
    else:  # rows without a box have no class, so any radius will do
        own = jnp.asarray(radii, boxes.boxes.dtype)[jnp.maximum(boxes.classes, 0)]
        kept = circle_nms(*rows, radius=jnp.where(boxes.valid, own, 1.0), **common)
    return boxes.take(kept.indices)


def _joined(groups: Sequence[Detections]) -> Detections:
    """Join the detections of a scene's class groups to one ``Detections``, best score first."""
    whole: Any = Detections(*(jnp.concatenate(parts) for parts in zip(*groups, strict=True)))
    return whole.take(jnp.argsort(-whole.scores, stable=True))
