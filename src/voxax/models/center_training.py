"""Training and evaluation of detectors that predict box centers: targets, losses, decoding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from voxax.detection import (
    BevGrid,
    CenterTargets,
    Region,
    center_targets,
    code_loss,
    encode_boxes,
    gaussian_focal_loss,
    sparse_center_targets,
)
from voxax.geometry import Voxels
from voxax.models.centerpoint import HEATMAP, CenterDetector, Groups, class_groups
from voxax.models.detector_boxes import box_codes, check_radii
from voxax.models.detector_training import DetectorTrainer
from voxax.models.voxelnext import VoxelNeXt


class BoxedCells(NamedTuple):
    """Targets of C cells that predict a scene's M boxes; C is M, or 9 M with neighbor cells.

    Attributes:
      rows: ``int32[C]``, row of each cell in the flattened grid; 0 where ``mask`` is false.
      codes: ``[C, 8]`` or ``[C, 10]``, code of the cell's box relative to the cell, see
        :func:`voxax.detection.encode_boxes`.
      classes: ``int32[C]``, class of the cell's box.
      mask: ``bool[C]``, whether the entry counts in the loss.
    """

    rows: jax.Array
    codes: jax.Array
    classes: jax.Array
    mask: jax.Array


def boxed_cells(
    boxes: jax.Array, classes: jax.Array, targets: CenterTargets, grid: BevGrid
) -> BoxedCells:
    """Return targets for the cell of each box and the adjacent cells whose center is in the box.

    Adjacent cells are trained too, so that a box is right even if the score peaks one cell off.

    Args:
      boxes: ``[M, 7]`` or ``[M, 9]``.
      classes: ``int[M]``, class of each box.
      targets: result of :func:`voxax.detection.center_targets` for these boxes.
      grid: grid of the targets.
    """
    number = len(boxes)
    boxes = jnp.where(targets.mask[:, None], boxes, jnp.ones((), boxes.dtype))
    around = jnp.asarray([(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)], jnp.int32)
    home = jnp.floor(grid.places(boxes)).astype(jnp.int32)
    cells = (home[:, None] + around[None]).reshape(-1, 2)
    many = jnp.repeat(boxes, len(around), axis=0)
    shape = jnp.asarray(grid.shape, jnp.int32)[None]
    mask = jnp.repeat(targets.mask, len(around))
    mask &= ((cells >= 0) & (cells < shape)).all(axis=1)
    low, cell = (jnp.asarray(v, boxes.dtype)[None] for v in (grid.low, grid.cell))
    away = low + (cells.astype(boxes.dtype) + 0.5) * cell - many[:, :2]
    cos, sin = jnp.cos(many[:, 6]), jnp.sin(many[:, 6])
    along, across = away[:, 0] * cos + away[:, 1] * sin, away[:, 1] * cos - away[:, 0] * sin
    inside = (jnp.abs(along) <= 0.5 * many[:, 3]) & (jnp.abs(across) <= 0.5 * many[:, 4])
    mask &= inside | jnp.tile((around == 0).all(axis=1), number)
    rows = jnp.where(mask, cells[:, 0] * grid.shape[1] + cells[:, 1], 0)
    codes = encode_boxes(many, cells, grid)
    return BoxedCells(rows, codes, jnp.repeat(classes, len(around)), mask)


def _doubled_angle(codes: jax.Array) -> jax.Array:
    """Return box codes with the yaw doubled, so that opposite headings have the same code.

    Columns 6 and 7 of a code are the cosine and the sine of the yaw.
    """
    cos, sin = codes[..., 6], codes[..., 7]
    return codes.at[..., 6].set(cos * cos - sin * sin).at[..., 7].set(2 * cos * sin)


def _halved_angle(codes: jax.Array) -> jax.Array:
    """Return box codes with the yaw halved, the inverse of :func:`_doubled_angle`.

    The result may have the opposite heading, since doubling makes both headings equal.
    """
    half = 0.5 * jnp.arctan2(codes[..., 7], codes[..., 6])
    return codes.at[..., 6].set(jnp.cos(half)).at[..., 7].set(jnp.sin(half))


class CenterTrainer(DetectorTrainer):
    """Trainer of a detector that predicts box centers on a dense grid of the ground plane.

    A step takes ``(boxes float32[B, M, 7 or 9], classes int32[B, M])`` as labels for B scenes of up
    to M boxes. Rows with a negative class are empty. As its prediction, a step returns a tuple of
    two losses: of the heat maps and of the boxes.

    Args:
      model: a :class:`voxax.models.centerpoint.CenterDetector`. All voxels must lie in its grid.
      optimizer: an optax transformation.
      region: range of the points and voxel size. Voxel coordinates count from the range's lower
        corner.
      groups: class numbers of each head of the model; None is one head for all classes.
      num_classes: number of classes of all heads together.
      box_weight: factor on the box loss; the factor on the heat map loss is 1.
      code_weights: weights of the 8 or 10 values of a box code in the box loss; None is 1 for all.
      is_directed: whether front and rear are distinguished. If not, the heads predict cosine and
        sine of twice the yaw, which are the same for both headings.
      neighbor_cells: whether also the cells next to a box's cell are trained to predict the box, if
        their center is in the box (unlike in CenterPoint); see :func:`boxed_cells`.
      min_overlap, min_radius: see :func:`voxax.detection.center_targets`.
      max_candidates, max_boxes, min_score, radii: passed to :func:`voxax.models.found_boxes` as
        ``max_boxes``, ``max_selected``, ``min_score`` and ``radii``.
      axis_name: name of the mapped axis of a program that runs on several devices. Losses are
        averaged and counts of lost rows are summed over the devices. None is for one device.
      keep_programs: as in :class:`voxax.models.training.Trainer`.

    Raises:
      InputError: ``groups`` do not have each class once, or ``radii`` do not have one per class.
    """

    def __init__(
        self,
        model: CenterDetector,
        optimizer: optax.GradientTransformation,
        region: Region,
        groups: Groups | None,
        num_classes: int,
        *,
        box_weight: float = 0.25,
        code_weights: Sequence[float] | None = None,
        is_directed: bool = True,
        neighbor_cells: bool = False,
        min_overlap: float = 0.1,
        min_radius: int = 2,
        max_candidates: int = 256,
        max_boxes: int = 128,
        min_score: float = 0.1,
        radii: Sequence[float] | None = None,
        axis_name: str | tuple[str, ...] | None = None,
        keep_programs: bool = True,
    ) -> None:
        self.groups = class_groups(groups, num_classes)
        self.box_weight, self.is_directed = box_weight, is_directed
        self.code_weights = None if code_weights is None else np.asarray(code_weights, np.float32)
        self.min_overlap, self.min_radius = min_overlap, min_radius
        self.neighbor_cells = neighbor_cells
        check_radii(radii, num_classes)
        super().__init__(
            model,
            optimizer,
            region,
            num_classes=num_classes,
            groups=self.groups,
            max_boxes=max_candidates,
            max_selected=max_boxes,
            min_score=min_score,
            radii=None if radii is None else tuple(radii),
            axis_name=axis_name,
            keep_programs=keep_programs,
        )

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        encoded = module.encode(voxels)
        heads = module.predictions(encoded)
        grid = self.region.bev(heads[0][HEATMAP].shape[1:3])
        targets, boxed = jax.vmap(functools.partial(self._targets, grid))(*labels)
        heat, box = jnp.zeros(()), jnp.zeros(())
        for group, maps in zip(self.groups, heads, strict=True):
            chosen = jnp.asarray(group)
            wanted_heat = targets.heatmap[..., chosen]
            heat += gaussian_focal_loss(maps[HEATMAP], wanted_heat, axis_name=self._axis_name)
            codes = box_codes(maps)
            codes = codes.reshape(codes.shape[0], -1, codes.shape[-1])
            found = jnp.take_along_axis(codes, boxed.rows[..., None], axis=1)
            mask = boxed.mask & (boxed.classes[..., None] == chosen).any(axis=-1)
            wanted = boxed.codes if self.is_directed else _doubled_angle(boxed.codes)
            box += code_loss(found, wanted, mask, self.code_weights, self._axis_name).sum()
        dropped = self._of_all(encoded.num_dropped)
        return heat + self.box_weight * box, (heat, box), dropped

    def _targets(
        self, grid: BevGrid, boxes: jax.Array, classes: jax.Array
    ) -> tuple[CenterTargets, BoxedCells]:
        number = sum(map(len, self.groups))
        targets = center_targets(
            boxes,
            classes,
            grid,
            number,
            min_overlap=self.min_overlap,
            min_radius=self.min_radius,
        )
        if self.neighbor_cells:
            return targets, boxed_cells(boxes, classes, targets, grid)
        return targets, BoxedCells(targets.rows, targets.codes, classes, targets.mask)

    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        encoded = module.encode(voxels)
        heads = module.predictions(encoded)
        if not self.is_directed:
            heads = [
                {HEATMAP: maps[HEATMAP], "code": _halved_angle(box_codes(maps))} for maps in heads
            ]
        return self._found(heads, voxels, encoded.geometry)


class SparseCenterTrainer(DetectorTrainer):
    """Trainer of a :class:`voxax.models.VoxelNeXt` detector, which predicts at sparse voxels.

    A step takes ``(boxes float32[B, M, 7 or 9], classes int32[B, M])`` as labels for B scenes of up
    to M boxes. Rows with a negative class are empty. As its prediction, a step returns a tuple of
    two losses: of the heat maps and of the boxes.

    Args:
      model: the detector. It needs a branch for the velocity if the boxes have a velocity.
      min_radius: see :func:`voxax.detection.sparse_center_targets`.
      optimizer, region, num_classes, box_weight, max_candidates, max_boxes, min_score, axis_name,
        keep_programs: as in :class:`CenterTrainer`.

    Source: Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking",
    CVPR 2023.
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
        self.groups, self.num_classes = model.groups, num_classes
        self.box_weight, self.min_radius = box_weight, min_radius
        super().__init__(
            model,
            optimizer,
            region,
            num_classes=num_classes,
            groups=self.groups,
            max_boxes=max_candidates,
            max_selected=max_boxes,
            min_score=min_score,
            axis_name=axis_name,
            keep_programs=keep_programs,
        )

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        out = module(voxels)
        ground, (boxes, classes) = out.voxels, labels
        targets = self._targets(ground, boxes, classes)
        # A cell belongs to one scene. The heat maps of other scenes are zero there.
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
        dropped = self._of_all(ground.num_dropped)
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
        return self._found(out, voxels, out.voxels.geometry)
