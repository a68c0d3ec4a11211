"""SECOND: a sparse backbone, a dense network on the ground plane, and boxes for anchors.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018; OpenPCDet
Development Team, "OpenPCDet: An Open-source Toolbox for 3D Object Detection", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.interop.sources import Source, by_part, renaming
from voxax.interop.spconv import Spconv
from voxax.models.bev_backbone import BEVBackbone, bev_names, dense_options, ground_grid
from voxax.models.voxel_backbone import NORM, VoxelBackBone8x, backbone_names
from voxax.nn.modules.constructor import own_rngs

BOX = 7
"""Numbers of a box: center, size, yaw."""


class AnchorOutput(NamedTuple):
    """Predictions for the anchors of each cell, side by side, on a grid ``[B, X, Y]``.

    Attributes:
      classes: logits, ``[B, X, Y, A * num_classes]``.
      boxes: residuals to the anchors, ``[B, X, Y, A * 7]``.
      directions: logits of the direction's bins, ``[B, X, Y, A * bins]``.
    """

    classes: jax.Array
    boxes: jax.Array
    directions: jax.Array


class AnchorHead(nnx.Module):
    """Three linear layers on each cell of the ground plane.

    Args:
      in_channels: of the grid.
      num_classes: logits of each anchor.
      anchors: number of anchors in each cell.
      direction_bins: logits of each anchor's direction.
      rngs: None takes a key that no other layer has.
      **options: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        anchors: int,
        direction_bins: int = 2,
        *,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        rngs = own_rngs(rngs)

        def layer(out_channels: int, bias: float = 0.0) -> nnx.Conv:
            start = jax.nn.initializers.constant(bias)
            made = {"bias_init": start, "rngs": rngs, **dense_options(options)}
            return nnx.Conv(in_channels, out_channels, (1, 1), **made)

        # One anchor in a hundred is an object at first (focal loss, Lin et al. 2017).
        self.classes = layer(anchors * num_classes, -math.log(99))
        self.boxes = layer(anchors * BOX)
        self.directions = layer(anchors * direction_bins)

    def __call__(self, grid: jax.Array) -> AnchorOutput:
        return AnchorOutput(self.classes(grid), self.boxes(grid), self.directions(grid))


class SECOND(nnx.Module):
    """The detector: voxels in, predictions for the anchors of a grid of the ground plane out.

    Args:
      in_channels: features of the voxels, the means of their points.
      num_classes: classes of objects.
      grid: cells along x, y and z: the range over the voxel size.
      anchors: number of anchors in each cell; None is two for each class, one for each yaw.
      direction_bins: of an anchor's direction.
      residual: the backbone of residual blocks.
      bev: arguments of :class:`BEVBackbone`.
      norm: arguments of every batch normalization.
      rngs: None takes a key that no other layer has.
      **options: of every layer: ``dtype``, ``param_dtype``, ``precision``; ``fwd_algo`` and
        ``bwd_algo`` of the sparse ones.

    Raises:
      InputError: a grid that is too small, or that the strides of ``bev`` do not divide; no
        anchors.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        grid: Sequence[int] = (1408, 1600, 40),
        *,
        anchors: int | None = None,
        direction_bins: int = 2,
        residual: bool = False,
        bev: Mapping[str, Any] | None = None,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        anchors = 2 * num_classes if anchors is None else anchors
        if anchors < 1:
            raise InputError(f"anchors={anchors} must be at least 1 in each cell")
        rngs = own_rngs(rngs)
        common = {"norm": norm, "rngs": rngs, **options}
        channels = (16, 32, 64, 128) if residual else (16, 32, 64, 64)
        self.backbone_3d = VoxelBackBone8x(
            in_channels, grid, channels=channels, residual=residual, **common
        )
        folded = self.backbone_3d.out_channels * self.backbone_3d.grid[2]
        self.backbone_2d = BEVBackbone(folded, **{**common, **(bev or {})})
        self.backbone_2d.check_grid(self.backbone_3d.grid[:2], 8)
        self.head = AnchorHead(
            self.backbone_2d.out_channels,
            num_classes,
            anchors,
            direction_bins,
            rngs=rngs,
            **options,
        )

    def __call__(self, voxels: Voxels) -> AnchorOutput:
        """Return the predictions of each cell; cells are those of the grid over the strides."""
        encoded = self.backbone_3d(voxels)
        with jax.named_scope("ground"):
            return self.head(self.backbone_2d(ground_grid(encoded, self.backbone_3d.grid)))

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet and torch-pointcloud store it."""
        head = renaming(
            (r"^classes$", "conv_cls"), (r"^boxes$", "conv_box"), (r"^directions$", "conv_dir_cls")
        )
        sparse, ground = backbone_names(self.backbone_3d.residual), bev_names()
        openpcdet = by_part(
            backbone_3d=("backbone_3d", sparse[0]),
            backbone_2d=("backbone_2d", ground[0]),
            head=("dense_head", head),
        )
        torch_pointcloud = by_part(
            backbone_3d=("backbone_3d", sparse[1]),
            backbone_2d=("backbone", ground[1]),
            head=("head", head),
        )
        spconv = Spconv("reversed")
        return {
            "openpcdet": Source(spconv, openpcdet),
            "torch-pointcloud": Source(spconv, torch_pointcloud),
        }
