"""SECOND: a detector with sparse backbone, dense backbone on the ground plane, and anchor head.

``MultiHeadSECOND``, for nuScenes, has an anchor head for each group of classes.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018; Zhu et
al., "Class-balanced Grouping and Sampling for Point Cloud 3D Object Detection", 2019; OpenPCDet
Development Team, "OpenPCDet: An Open-source Toolbox for 3D Object Detection", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.interop.sources import (
    REFERENCE,
    TORCH,
    Source,
    by_part,
    norm_settings,
    renaming,
    torch_pointcloud_sources,
)
from voxax.interop.spconv import Spconv
from voxax.models.bev_backbone import (
    DenseConvNormAct,
    GroundDetector,
    bev_names,
    dense_options,
    levels_rule,
)
from voxax.models.centerpoint import BRANCHES, Groups, class_groups
from voxax.models.voxel_backbone import NORM, backbone_names
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import LayerOptions

BOX = 7
"""Number of residuals that code a box relative to an anchor: center, size, yaw."""


class AnchorOutput(NamedTuple):
    """Predictions for the A anchors of each cell on a grid ``[B, X, Y]``.

    Attributes:
      classes: logits, ``[B, X, Y, A * num_classes]``.
      boxes: residuals of the boxes relative to the anchors, ``[B, X, Y, A * 7]``; with cosine and
        sine of the yaw, and the velocity, ``[B, X, Y, A * 10]``.
      directions: logits of the direction bins, ``[B, X, Y, A * bins]``, which tell front from rear;
        None if the residuals contain the whole yaw.
    """

    classes: jax.Array
    boxes: jax.Array
    directions: jax.Array | None


class AnchorHead(Module):
    """Head of :class:`SECOND`: per ground plane cell, linear layers for class, box, direction.

    Args:
      in_channels: channels of the input grid.
      num_classes: number of class logits of each anchor.
      anchors: number of anchors in each cell.
      direction_bins: number of direction logits of each anchor.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
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
        **options: Unpack[LayerOptions],
    ) -> None:
        rngs = own_rngs(rngs)

        def layer(out_channels: int, bias: float = 0.0, **start: Any) -> nnx.Conv:
            start = {"bias_init": jax.nn.initializers.constant(bias), "rngs": rngs, **start}
            return nnx.Conv(in_channels, out_channels, (1, 1), **dense_options(options) | start)

        # Initially every anchor has score 0.01 (focal loss, Lin et al. 2017) and predicts about
        # the anchor's own box.
        normal = jax.nn.initializers.normal
        self.classes = layer(anchors * num_classes, -math.log(99), kernel_init=normal(0.01))
        self.boxes = layer(anchors * BOX, kernel_init=normal(0.001))
        self.directions = layer(anchors * direction_bins)

    def __call__(self, grid: jax.Array) -> AnchorOutput:
        return AnchorOutput(self.classes(grid), self.boxes(grid), self.directions(grid))


class SECOND(GroundDetector):
    """SECOND detector: from voxels to an :class:`AnchorOutput` on a grid of the ground plane.

    Args:
      in_channels: number of voxel features, which are means over the points of a voxel.
      num_classes: number of object classes.
      grid: number of cells along x, y and z, the range divided by the voxel size.
      anchors: number of anchors in each cell; None is two for each class, one for each yaw.
      direction_bins: number of bins into which the heading of a box is classified.
      residual: whether the sparse backbone consists of residual blocks.
      channels: channels of the sparse backbone's four levels; None takes the published ones.
      out_channels: channels of the sparse backbone's result.
      bev: arguments of :class:`BEVBackbone`.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every layer, see :class:`voxax.nn.modules.SpatiallySparseConv`.

    Attributes:
      anchors: number of anchors in each cell.
      direction_bins: number of bins into which the heading of a box is classified.

    Raises:
      InputError: the grid is too small or not divisible by the strides of ``bev``, or ``anchors``
        is below 1.
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
        channels: Sequence[int] | None = None,
        out_channels: int = 128,
        bev: Mapping[str, Any] | None = None,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        anchors = 2 * num_classes if anchors is None else anchors
        if anchors < 1:
            raise InputError(f"anchors={anchors} must be at least 1 in each cell")
        self.anchors, self.direction_bins = anchors, direction_bins
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"norm": norm, "rngs": rngs, **options}
        if channels is None:
            channels = (16, 32, 64, 128) if residual else (16, 32, 64, 64)
        sizes = {"residual": residual, "channels": channels, "out_channels": out_channels}
        self._make_backbones(in_channels, grid, bev, common, **sizes)
        self.head = AnchorHead(
            self.backbone_2d.out_channels,
            num_classes,
            anchors,
            direction_bins,
            rngs=rngs,
            **options,
        )

    def sources(self) -> dict[str, Source]:
        """Return how each supported codebase names and stores the weights of this network.

        The result is a dict from the codebase's name, such as ``openpcdet``, to its ``Source``.
        """
        head = renaming(
            (r"^classes$", "conv_cls"), (r"^boxes$", "conv_box"), (r"^directions$", "conv_dir_cls")
        )
        openpcdet = self._openpcdet_names(head)
        torch_pointcloud = by_part(
            backbone_3d=("backbone_3d", backbone_names(self.backbone_3d.residual)[1]),
            backbone_2d=("backbone", bev_names()[1]),
            head=("head", head),
        )
        spconv = Spconv("reversed")
        mmdetection3d = {}
        if not self.backbone_3d.residual:
            names = _mmdetection3d_names()
            form = Source(spconv, names, settings=norm_settings(*REFERENCE))
            mmdetection3d = {"mmdetection3d": form}
        return {
            "openpcdet": Source(spconv, openpcdet, settings=norm_settings(*REFERENCE)),
            **torch_pointcloud_sources(spconv, torch_pointcloud),
            **mmdetection3d,
        }


def _mmdetection3d_names() -> Callable[[str], str]:
    return renaming(
        levels_rule(r"backbone_2d\.", "backbone.blocks"),
        (r"^backbone_2d\.ups", "neck.deblocks"),
        (r"^backbone_3d\.stem", "middle_encoder.conv_input"),
        (r"^backbone_3d\.out", "middle_encoder.conv_out"),
        (
            r"^backbone_3d\.stages\.(\d+)",
            lambda m: f"middle_encoder.encoder_layers.encoder_layer{int(m[1]) + 1}",
        ),
        (r"\.conv$", ".0"),
        (r"\.norm$", ".1"),
        (r"^head\.classes$", "bbox_head.conv_cls"),
        (r"^head\.boxes$", "bbox_head.conv_reg"),
        (r"^head\.directions$", "bbox_head.conv_dir_cls"),
    )


class SeparateAnchorHead(Module):
    """Anchor head with two convolutions for the classes, and two for each part of the box codes.

    Args:
      in_channels: channels of the input grid.
      num_classes: number of class logits of each anchor.
      anchors: number of anchors in each cell.
      branches: number of values of each part of a box code, by name.
      hidden: channels between the two convolutions.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights.
      **options: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        anchors: int,
        branches: Mapping[str, int],
        hidden: int,
        *,
        norm: Mapping[str, Any],
        rngs: nnx.Rngs,
        **options: Unpack[LayerOptions],
    ) -> None:
        def stack(channels: int, bias: float = 0.0) -> nnx.List:
            common: dict[str, Any] = {"norm": norm, "rngs": rngs, **options}
            start = {"bias_init": jax.nn.initializers.constant(bias), **dense_options(options)}
            last = nnx.Conv(hidden, channels, (3, 3), padding=((1, 1),) * 2, rngs=rngs, **start)
            return nnx.List([DenseConvNormAct(in_channels, hidden, 3, 1, 1, **common), last])

        self.order = tuple(branches)
        self.classes = stack(anchors * num_classes, -math.log(99))
        self.boxes = nnx.Dict({name: stack(anchors * n) for name, n in branches.items()})

    def __call__(self, grid: jax.Array) -> AnchorOutput:
        """Return the predictions for a grid ``[B, X, Y, in_channels]``; ``directions`` is None.

        Each array is ``[B, X, Y, channels]``. The channels of ``boxes`` are the output of the first
        branch for all anchors, then that of the second branch, and so on. Decoding ignores this
        order, as in OpenPCDet: it takes consecutive channels as the box code of one anchor. With
        several anchors, a part of a box code can therefore come from a branch that is named after
        another part.
        """

        def run(layers: nnx.List) -> jax.Array:
            first, last = layers
            return last(first(grid))

        boxes = jnp.concatenate([run(self.boxes[name]) for name in self.order], axis=-1)
        return AnchorOutput(run(self.classes), boxes, None)


class MultiAnchorHead(Module):
    """Head of :class:`MultiHeadSECOND`: a shared convolution, then an anchor head per class group.

    Args:
      in_channels: channels of the input grid.
      groups: class numbers of each head.
      anchors: number of anchors in each cell for a class.
      branches: as in :class:`SeparateAnchorHead`.
      shared: channels of the shared convolution and of the hidden layers of the heads.
      norm: arguments of the shared convolution's batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        groups: Groups,
        anchors: int = 2,
        *,
        branches: Mapping[str, int] = BRANCHES,
        shared: int = 64,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        self.shared = DenseConvNormAct(
            in_channels, shared, 3, 1, 1, norm=norm, rngs=rngs, **options
        )
        own = {"norm": {"epsilon": TORCH[0], "momentum": TORCH[1]}, "rngs": rngs, **options}
        self.heads = nnx.List(
            [
                SeparateAnchorHead(
                    shared, len(group), anchors * len(group), branches, shared, **own
                )
                for group in groups
            ]
        )

    def __call__(self, grid: jax.Array) -> tuple[AnchorOutput, ...]:
        """Return the predictions of each head, in the order of ``groups``.

        ``grid`` is ``[B, X, Y, in_channels]``.
        """
        grid = self.shared(grid)
        return tuple(head(grid) for head in self.heads)


class MultiHeadSECOND(SECOND):
    """SECOND detector with an anchor head for each group of classes, as for nuScenes.

    A call returns a tuple of :class:`voxax.models.AnchorOutput`, one for each group. ``directions``
    is None because the codes contain cosine and sine of the yaw. The codes also contain the
    velocity, see :func:`voxax.detection.decode_residuals`.

    Args:
      in_channels: number of voxel features, which are means over the points of a voxel.
      num_classes: number of object classes.
      grid: number of cells along x, y and z, the range divided by the voxel size.
      groups: class numbers of each head; None is one head for all classes. Also an attribute.
      anchors: number of anchors in each cell for a class, one for each yaw.
      branches: number of values of each part of a box code, by name.
      residual: whether the sparse backbone consists of residual blocks.
      channels: channels of the sparse backbone's four levels.
      out_channels: channels of the sparse backbone's result.
      bev: arguments of :class:`BEVBackbone`.
      shared: channels of the shared convolution and of the hidden layers of the heads.
      norm: arguments of the batch normalizations outside of the heads.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every layer, see :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: the grid is too small or not divisible by the strides of ``bev``, ``groups`` do
        not contain each class once, or ``anchors`` is below 1.
    """

    groups: tuple[tuple[int, ...], ...]

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        grid: Sequence[int] = (1024, 1024, 40),
        *,
        groups: Groups | None = None,
        anchors: int = 2,
        branches: Mapping[str, int] = BRANCHES,
        residual: bool = True,
        channels: Sequence[int] = (16, 32, 64, 128),
        out_channels: int = 128,
        bev: Mapping[str, Any] | None = None,
        shared: int = 64,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        if anchors < 1:
            raise InputError(f"anchors={anchors} must be at least 1 in each cell for a class")
        self.anchors = anchors * num_classes
        self.groups = class_groups(groups, num_classes)
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"norm": norm, "rngs": rngs, **options}
        sizes = {"residual": residual, "channels": channels, "out_channels": out_channels}
        self._make_backbones(in_channels, grid, bev, common, **sizes)
        self.head = MultiAnchorHead(
            self.backbone_2d.out_channels,
            self.groups,
            anchors,
            branches=branches,
            shared=shared,
            **common,
        )

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet names and stores the weights of this network.

        The result is a dict with one entry, from the codebase's name to its ``Source``.
        """
        head = renaming(
            (r"^shared\b", "shared_conv"),
            (r"^heads\b", "rpn_heads"),
            (r"\.classes\b", ".conv_cls"),
            (r"\.boxes\.center\b", ".conv_box.conv_reg"),
            (r"\.boxes\.center_z\b", ".conv_box.conv_height"),
            (r"\.boxes\.dim\b", ".conv_box.conv_size"),
            (r"\.boxes\.rot\b", ".conv_box.conv_angle"),
            (r"\.boxes\.vel\b", ".conv_box.conv_velo"),
            (r"(conv_\w+)\.1$", r"\1.3"),
            (r"(conv_\w+)\.0\.conv$", r"\1.0"),
            (r"(conv_\w+)\.0\.norm$", r"\1.1"),
            (r"^shared_conv\.conv$", "shared_conv.0"),
            (r"^shared_conv\.norm$", "shared_conv.1"),
        )
        names = self._openpcdet_names(head)
        classes = [f"dense_head.rpn_heads.{i}.head_label_indices" for i in range(len(self.groups))]
        norms = norm_settings(*REFERENCE, r"^backbone|^head\.shared")
        norms += norm_settings(*TORCH, r"^head\.heads")
        return {"openpcdet": Source(Spconv("reversed"), names, tuple(classes), norms)}
