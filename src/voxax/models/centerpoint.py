"""CenterPoint: objects as points on the ground plane, with a heat map for each class.

Source: Yin, Zhou, Krähenbühl, "Center-based 3D Object Detection and Tracking", CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from flax.core import FrozenDict

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.interop.sources import Source, by_part, renaming
from voxax.interop.spconv import Spconv
from voxax.models.bev_backbone import (
    BEVBackbone,
    DenseConvNormAct,
    bev_names,
    dense_options,
    ground_grid,
)
from voxax.models.voxel_backbone import NORM, VoxelBackBone8x, backbone_names
from voxax.nn.modules.constructor import own_rngs

BRANCHES: Mapping[str, int] = FrozenDict(center=2, center_z=1, dim=3, rot=2, vel=2)
"""Channels of what is predicted for a center: its offset in the cell in cells, its height, the
logarithms of its sizes, cosine and sine of its yaw, its velocity."""
HEATMAP = "hm"
START = -2.19
"""Bias of the heat maps' logits: one cell in ten is a center at first, as in CornerNet."""

Groups = Sequence[Sequence[int]]
"""Classes that share a head."""


def class_groups(groups: Groups | None, num_classes: int) -> tuple[tuple[int, ...], ...]:
    """Return the groups, all classes in one where None is given.

    Raises:
      InputError: a class that is missing, given twice or unknown.
    """
    found = (tuple(range(num_classes)),) if groups is None else tuple(map(tuple, groups))
    if sorted(c for group in found for c in group) != list(range(num_classes)) or () in found:
        raise InputError(
            f"groups={found} must have each of the {num_classes} classes 0 to {num_classes - 1} "
            "once"
        )
    return found


class Branches(nnx.Module):
    """For each group of classes and each quantity a short stack of layers on the same input.

    Args:
      groups: classes of each group, which fix the channels of its heat maps.
      branches: channels of the other quantities by name.
      hidden: makes a hidden layer.
      last: makes the last layer, given its channels and the start of its bias.
      depth: layers of each stack.
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
        """Return what each stack makes of ``x``, by name, for each group."""
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


class CenterHead(nnx.Module):
    """Heat maps and boxes on a grid of the ground plane.

    Args:
      in_channels: of the grid.
      groups: classes that share a head.
      branches: channels of what is predicted for a center, by name.
      shared: channels of the layer that all have in common.
      norm: arguments of every batch normalization.
      rngs: None takes a key that no other layer has.
      **options: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        groups: Groups,
        *,
        branches: Mapping[str, int] = BRANCHES,
        shared: int = 64,
        norm: Mapping[str, Any] = FrozenDict(epsilon=1e-5, momentum=0.9),
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"use_bias": True, "norm": norm, "rngs": rngs, **options}
        self.shared = DenseConvNormAct(in_channels, shared, 3, 1, 1, **common)

        def last(channels: int, bias: float) -> nnx.Conv:
            made = {"bias_init": jax.nn.initializers.constant(bias), **dense_options(options)}
            return nnx.Conv(shared, channels, (3, 3), padding=((1, 1),) * 2, rngs=rngs, **made)

        self.branches = Branches(
            groups, branches, lambda: DenseConvNormAct(shared, shared, 3, 1, 1, **common), last
        )

    def __call__(self, grid: jax.Array) -> tuple[dict[str, jax.Array], ...]:
        """Return arrays ``[B, X, Y, channels]`` by name for each group, logits under ``hm``."""
        return self.branches(self.shared(grid))


def branch_names(norm: str) -> Callable[[str], str]:
    """Return the names of heads in OpenPCDet by the path of a layer; norms end in ``norm``."""
    return renaming(
        (r"^branches\.groups\.", "heads_list."),
        (r"^shared\b", "shared_conv"),
        (r"\.conv$", ".0"),
        (r"\.norm$", f".1{norm}"),
    )


class CenterDetector(nnx.Module):
    """A sparse backbone, a dense one on the ground plane, and a head for centers.

    A subclass makes the layers.

    Attributes:
      backbone_3d: a module from Voxels to Voxels inside ``backbone_3d.grid``, of cells along x, y
        and z.
      backbone_2d: a module on a grid ``[B, X, Y, C]``.
      head: see :class:`CenterHead`.
    """

    backbone_3d: Any
    backbone_2d: Any
    head: Callable[[jax.Array], tuple[dict[str, jax.Array], ...]]

    def encode(self, voxels: Voxels) -> Voxels:
        """Return the voxels of the sparse backbone, which know what was lost to capacity."""
        return self.backbone_3d(voxels)

    def maps(self, encoded: Voxels) -> tuple[dict[str, jax.Array], ...]:
        """Return what :meth:`__call__` does, from the voxels of :meth:`encode`."""
        with jax.named_scope("ground"):
            return self.head(self.backbone_2d(ground_grid(encoded, self.backbone_3d.grid)))

    def __call__(self, voxels: Voxels) -> tuple[dict[str, jax.Array], ...]:
        """Return arrays ``[B, X', Y', channels]`` by name for each group, logits under ``hm``."""
        return self.maps(self.encode(voxels))


class CenterPoint(CenterDetector):
    """The detector: voxels in, heat maps and boxes on a grid of the ground plane out.

    Args:
      in_channels: features of the voxels, the means of their points.
      num_classes: classes of objects.
      grid: cells along x, y and z: the range over the voxel size.
      groups: classes that share a head; None puts all in one. Also an attribute.
      branches: channels of what is predicted for a center, by name.
      residual: the backbone of residual blocks.
      channels: of the backbone's four levels.
      bev: arguments of :class:`BEVBackbone`.
      shared: channels of the layer that all heads have in common.
      norm: arguments of the batch normalizations of both backbones.
      rngs: None takes a key that no other layer has.
      **options: of every layer: ``dtype``, ``param_dtype``, ``precision``; ``fwd_algo`` and
        ``bwd_algo`` of the sparse ones.

    Raises:
      InputError: a grid that is too small, or that the strides of ``bev`` do not divide; groups
        that do not have each class once.
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
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        rngs = own_rngs(rngs)
        common = {"norm": norm, "rngs": rngs, **options}
        self.backbone_3d = VoxelBackBone8x(
            in_channels, grid, channels=channels, residual=residual, **common
        )
        folded = self.backbone_3d.out_channels * self.backbone_3d.grid[2]
        self.backbone_2d = BEVBackbone(folded, **{**common, **(bev or {})})
        self.backbone_2d.check_grid(self.backbone_3d.grid[:2], 8)
        self.groups = class_groups(groups, num_classes)
        self.head = CenterHead(
            self.backbone_2d.out_channels,
            self.groups,
            branches=branches,
            shared=shared,
            rngs=rngs,
            **options,
        )

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet stores it."""
        names = by_part(
            backbone_3d=("backbone_3d", backbone_names(self.backbone_3d.residual)[0]),
            backbone_2d=("backbone_2d", bev_names()[0]),
            head=("dense_head", branch_names("")),
        )
        return {"openpcdet": Source(Spconv("reversed"), names)}
