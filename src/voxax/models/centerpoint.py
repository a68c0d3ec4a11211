"""CenterPoint: a detector that finds objects as peaks of heat maps on the ground plane.

Source: Yin, Zhou, Krähenbühl, "Center-based 3D Object Detection and Tracking", CVPR 2021.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import jax
import numpy as np
from flax import nnx
from flax.core import FrozenDict

from voxax.errors import InputError
from voxax.interop.peer import Form, LayerWeights, Role
from voxax.interop.sources import REFERENCE, Source, norm_settings, renaming
from voxax.interop.spconv import Spconv
from voxax.models.bev_backbone import DenseConvNormAct, GroundDetector, dense_options, levels_rule
from voxax.models.voxel_backbone import NORM
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import LayerOptions

BRANCHES: Mapping[str, int] = FrozenDict(center=2, center_z=1, dim=3, rot=2, vel=2)
"""Number of channels of each predicted quantity: offset of the box center in its cell (in cells),
height of the center, logarithms of the box sizes, cosine and sine of the yaw, velocity."""
HEATMAP = "hm"
START = -2.19
"""Initial bias of the heat map logits: every cell has probability 0.1, as in CornerNet."""

Groups = Sequence[Sequence[int]]
"""Class numbers of each head of a detector, one sequence per head."""


def class_groups(groups: Groups | None, num_classes: int) -> tuple[tuple[int, ...], ...]:
    """Return ``groups`` as tuples of class numbers; None gives one group of all classes.

    Each class, from 0 to ``num_classes - 1``, must be in exactly one group.

    Raises:
      InputError: a class is missing, given twice or unknown.
    """
    found = (tuple(range(num_classes)),) if groups is None else tuple(map(tuple, groups))
    if sorted(c for group in found for c in group) != list(range(num_classes)) or () in found:
        raise InputError(
            f"groups={found} must have each of the {num_classes} classes 0 to {num_classes - 1} "
            "once"
        )
    return found


class Branches(Module):
    """Stacks of layers on one input: for each group of classes, one stack per predicted quantity.

    The quantities are the heat map and those in ``branches``, such as the size of the box.

    Args:
      groups: class numbers of each group. A group's heat map has one channel for each class.
      branches: number of channels of each quantity other than the heat map, by name.
      hidden: function without arguments that makes a hidden layer.
      last: function that makes the last layer of a stack. Its arguments are the number of output
        channels and the initial bias.
      depth: number of layers in each stack, including the last.
    """

    def __init__(
        self,
        groups: Groups,
        branches: Mapping[str, int],
        hidden: Callable[[], Callable[[Any], Any]],
        last: Callable[[int, float], Callable[[Any], Any]],
        depth: int = 2,
    ) -> None:
        def stack(channels: int, bias: float) -> nnx.List:
            return nnx.List([*(hidden() for _ in range(depth - 1)), last(channels, bias)])

        self.groups = nnx.List(
            [
                nnx.Dict(
                    {
                        **{name: stack(number, 0.0) for name, number in branches.items()},
                        HEATMAP: stack(len(group), START),
                    }
                )
                for group in groups
            ]
        )

    def __call__(self, x: Any) -> tuple[dict[str, Any], ...]:
        """Apply every stack of layers to ``x``; return a dict of outputs by name for each group.

        The names are those of the predicted quantities, such as ``hm`` for the heat map.
        """
        results = []
        for group in self.groups:
            found = {}
            for name, layers in group.items():
                out = x
                for layer in layers:
                    out = layer(out)
                found[name] = out
            results.append(found)
        return tuple(results)


class CenterHead(Module):
    """Head of :class:`CenterPoint`: predicts heat maps and box codes for each ground plane cell.

    Args:
      in_channels: channels of the input grid.
      groups: class numbers of each head, one sequence per head.
      branches: number of channels of each predicted quantity, by name.
      shared: channels of the first layer, which all branches share.
      use_bias: whether convolutions before a batch normalization have a bias.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every layer: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        groups: Groups,
        *,
        branches: Mapping[str, int] = BRANCHES,
        shared: int = 64,
        use_bias: bool = True,
        norm: Mapping[str, Any] = FrozenDict(epsilon=1e-5, momentum=0.9),
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"use_bias": use_bias, "norm": norm, "rngs": rngs, **options}
        self.shared = DenseConvNormAct(in_channels, shared, 3, 1, 1, **common)

        def last(channels: int, bias: float) -> nnx.Conv:
            made = {"bias_init": jax.nn.initializers.constant(bias), **dense_options(options)}
            return nnx.Conv(shared, channels, (3, 3), padding=((1, 1),) * 2, rngs=rngs, **made)

        self.branches = Branches(
            groups, branches, lambda: DenseConvNormAct(shared, shared, 3, 1, 1, **common), last
        )

    def __call__(self, grid: jax.Array) -> tuple[dict[str, jax.Array], ...]:
        """Return for each group of classes a dict of predictions ``[B, X, Y, channels]``.

        ``grid`` is ``[B, X, Y, in_channels]``. The entry ``hm`` has the class logits, and the other
        entries are the quantities in ``branches``.
        """
        return self.branches(self.shared(grid))


def branch_names(norm: str) -> Callable[[str], str]:
    """Return a function from a layer's path in :class:`CenterHead` to its name in OpenPCDet.

    The name of a normalization ends with ``.1`` and the text ``norm``, which may be empty.
    """
    return renaming(
        (r"^branches\.groups\.", "heads_list."),
        (r"^shared\b", "shared_conv"),
        (r"\.conv$", ".0"),
        (r"\.norm$", f".1{norm}"),
    )


class CenterDetector(GroundDetector):
    """Base class of detectors that predict box centers on a dense grid of the ground plane.

    Subclasses build the layers. A call returns for each group of classes a dict of arrays
    ``[B, X', Y', channels]``. The entry ``hm`` has the class logits, the others encode the boxes.
    """


class CenterPoint(CenterDetector):
    """CenterPoint detector: from voxels to heat maps and box codes on a ground plane grid.

    Args:
      in_channels: number of features of a voxel, which are the means over its points.
      num_classes: number of object classes.
      grid: numbers of cells along x, y and z, which are the range divided by the voxel size.
      groups: class numbers of each head; None is one head for all classes. Also an attribute.
      branches: number of channels of each predicted quantity, by name.
      residual: whether the sparse backbone consists of residual blocks.
      channels: channels of the sparse backbone's four levels.
      bev: arguments of :class:`BEVBackbone`.
      shared: channels of the first layer of the heads, which all heads share.
      use_bias: whether convolutions before a batch normalization have a bias, in residual blocks
        and in the head.
      norm: arguments of the batch normalizations of both backbones.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every layer, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: the grid is too small or not divisible by the strides of ``bev``, or ``groups`` do
        not have each class once.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        grid: Sequence[int] = (1440, 1440, 40),
        *,
        groups: Groups | None = None,
        branches: Mapping[str, int] = BRANCHES,
        residual: bool = True,
        channels: Sequence[int] = (16, 32, 64, 128),
        bev: Mapping[str, Any] | None = None,
        shared: int = 64,
        use_bias: bool = True,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"norm": norm, "rngs": rngs, **options}
        sizes = {"residual": residual, "channels": channels, "block_bias": use_bias}
        self._make_backbones(in_channels, grid, bev, common, **sizes)
        self.groups = class_groups(groups, num_classes)
        self.head = CenterHead(
            self.backbone_2d.out_channels,
            self.groups,
            branches=branches,
            shared=shared,
            use_bias=use_bias,
            rngs=rngs,
            **options,
        )
        self.use_bias = use_bias

    def sources(self) -> dict[str, Source]:
        """Return how each supported codebase names and stores the weights of this network.

        The result is a dict from the codebase's name, such as ``openpcdet``, to its ``Source``.
        """
        names = self._openpcdet_names(branch_names(""))
        norms = norm_settings(*REFERENCE, "^backbone")
        found = {"openpcdet": Source(Spconv("reversed"), names, settings=norms)}
        if not self.backbone_3d.residual:
            return found
        if not self.use_bias:
            sine_first = _CenterHeads("reversed", outputs=(("rot", (1, 0), 1),))
            return {"mmdetection3d": Source(sine_first, _mmdetection3d_names(), settings=norms)}
        # CenterPoint's own code stores the width before the length. Its yaw is `-yaw - pi / 2`,
        # with the sine first: minus voxax's cosine, then minus voxax's sine.
        first = _CenterHeads("reversed", outputs=(("dim", (1, 0, 2), 1), ("rot", (0, 1), -1)))
        return {**found, "centerpoint": Source(first, _first_names(), settings=norms)}


@dataclasses.dataclass(frozen=True)
class _CenterHeads(Spconv):
    """How a codebase stores CenterPoint, if its heads reorder or negate output channels.

    Such codebases resize the first level of the dense backbone with a convolution. In voxax that
    layer is a transposed convolution of kernel size 1.

    Attributes:
      outputs: ``(name, channels, sign)`` for each branch whose last layer differs from voxax. The
        codebase stores the voxax channel ``channels[i]`` as channel ``i``, times ``sign`` (1 or
        -1).
    """

    outputs: tuple[tuple[str, tuple[int, ...], int], ...] = ()

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        if layer.kind == "dense_transposed" and layer.shape("weight")[:2] == (1, 1):
            layer = dataclasses.replace(layer, kind="dense")
        found = super().forms(layer)
        for branch, order, sign in self.outputs:
            if re.search(rf"\.{branch}\.1$", layer.path):
                for role, forms in found.items():
                    found[role] = [_permuted(form, order, sign) for form in forms]
        return found


def _permuted(form: Form, order: tuple[int, ...], sign: int) -> Form:
    """Return ``form`` for a tensor whose output channels are also reordered and multiplied.

    Channel ``i`` of the stored tensor is the voxax channel ``order[i]`` times ``sign``, 1 or -1.
    """
    axis = 0 if len(form.shape) != 2 else 1  # a bias may be a row
    places, back = np.array(order), np.argsort(order)
    return dataclasses.replace(
        form,
        read=lambda x: form.read(sign * np.take(x, back, axis)),
        write=lambda x: sign * np.take(form.write(x), places, axis),
    )


# Names of branches in CenterPoint's own code and in mmdetection3d.
_BRANCHES = ((r"\.center\b", ".reg"), (r"\.center_z\b", ".height"))
_BLOCKS = (
    (r"\.first\.conv$", ".conv1"),
    (r"\.first\.norm$", ".bn1"),
    (r"\.second$", ".conv2"),
    (r"^(backbone_3d\.stages\.(?:0\.\d+|\d+\.[1-9]))\.norm$", r"\1.bn2"),
)


def _mmdetection3d_names() -> Callable[[str], str]:
    """Return a function from a layer's path in voxax's CenterPoint to its name in mmdetection3d.

    In mmdetection3d the strided layer of a level is the last layer of the previous level.
    """

    def layer(found: re.Match[str]) -> str:
        level, place = int(found[1]), int(found[2])
        level, place = (level, 2) if level and not place else (level + 1, place - bool(level))
        return f"pts_middle_encoder.encoder_layers.encoder_layer{level}.{place}"

    return renaming(
        *_BLOCKS,
        (r"^backbone_3d\.stages\.(\d+)\.(\d+)", layer),
        (r"^backbone_3d\.stem\b", "pts_middle_encoder.conv_input"),
        (r"^backbone_3d\.out\b", "pts_middle_encoder.conv_out"),
        levels_rule(r"backbone_2d\.", "pts_backbone.blocks"),
        (r"^backbone_2d\.ups\b", "pts_neck.deblocks"),
        (r"^head\.(.*)\.norm$", r"head.\1.bn"),
        (r"^head\.shared\b", "pts_bbox_head.shared_conv"),
        (r"^head\.branches\.groups\b", "pts_bbox_head.task_heads"),
        (r"^(pts_[mn].*)\.conv$", r"\1.0"),
        (r"^(pts_[mn].*)\.norm$", r"\1.1"),
        *_BRANCHES,
        (r"\.hm\b", ".heatmap"),
    )


def _first_names() -> Callable[[str], str]:
    """Return a function from a layer's path in voxax to its name in CenterPoint's own code.

    That is the code which the authors of CenterPoint published.
    """

    def block(found: re.Match[str]) -> str:  # convolution, norm, ReLU, then blocks
        return f"backbone.conv{int(found[1]) + 1}.{int(found[2]) + 2}"

    return renaming(
        *_BLOCKS,
        (r"^backbone_3d\.stages\.0\b", "backbone.conv1"),
        (r"^backbone_3d\.stages\.(\d+)\.0\b", lambda m: f"backbone.conv{int(m[1]) + 1}"),
        (r"^backbone_3d\.stages\.(\d+)\.(\d+)", block),
        (r"^backbone_3d\.stem\b", "backbone.conv_input"),
        (r"^backbone_3d\.out\b", "backbone.extra_conv"),
        levels_rule(r"backbone_2d\.", "neck.blocks", 1),  # padding comes first
        (r"^backbone_2d\.ups\b", "neck.deblocks"),
        (r"^head\.branches\.groups\.(.*)\.1$", r"bbox_head.tasks.\1.3"),
        (r"^head\.branches\.groups\.(.*)\.0\.", r"bbox_head.tasks.\1."),
        (r"^head\.shared\b", "bbox_head.shared_conv"),
        (r"\.conv$", ".0"),
        (r"\.norm$", ".1"),
        *_BRANCHES,
    )
