"""VoxelNeXt: a detector without a dense grid, which predicts at sparse ground plane voxels.

Source: Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking", CVPR
2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import FrozenDict

from voxax import _compat
from voxax.coords import PAD
from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.origin import Origin
from voxax.geometry.regroup import new_geometry, reduce_rows, unique_sites
from voxax.interop.sources import (
    REFERENCE,
    Source,
    by_part,
    norm_settings,
    torch_pointcloud_sources,
)
from voxax.interop.spconv import Spconv
from voxax.models.centerpoint import BRANCHES, Branches, Groups, branch_names, class_groups
from voxax.models.minkunet import ConvNormAct
from voxax.models.voxel_backbone import (
    NORM,
    GrowingConv,
    backbone_names,
    blocks,
    grid_with_top,
    inside_grid,
    run_stages,
    stage,
)
from voxax.nn.arguments import static
from voxax.nn.modules import SpatiallySparseConv
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import LayerOptions

PLAIN: Mapping[str, Any] = FrozenDict(epsilon=1e-5, momentum=0.9)
"""Arguments that give a batch normalization PyTorch's defaults."""


class VoxelNeXtBackbone(Module):
    """Sparse backbone of six levels; the last three are summed on the ground plane.

    Args:
      in_channels: number of features of the voxels.
      grid: numbers of cells along x, y and z, which are the range divided by the voxel size. One
        cell is added along z.
      channels: channels of the first five levels; the sixth has as many as the fifth.
      out_channels: channels of the output.
      kernel_sizes: odd kernel sizes of the strided convolutions to levels two to five. The last
        size is also that of the convolution to level six.
      capacity: static number of rows on the ground plane. None takes a sufficient number in eager
        calls. Under ``jax.jit`` None takes the largest possible number: nine for each row of the
        last three levels, and at most all cells.
      norm: arguments of every batch normalization except the last.
      last_norm: arguments of the last batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of all convolutions, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: ``grid`` is too small, or the fourth and the fifth level, whose features are
        added, differ in channels.
    """

    def __init__(
        self,
        in_channels: int,
        grid: Sequence[int],
        *,
        channels: Sequence[int] = (16, 32, 64, 128, 128),
        out_channels: int = 128,
        kernel_sizes: Sequence[int] = (3, 3, 3, 3),
        capacity: int | None = None,
        norm: Mapping[str, Any] = NORM,
        last_norm: Mapping[str, Any] = PLAIN,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        shape, channels = grid_with_top(grid), static(channels)
        if len(channels) != 5 or channels[3] != channels[4]:
            raise InputError(
                f"channels={channels} must be those of five levels, the last two equal: "
                "their features are added"
            )
        kernel_sizes = static(kernel_sizes)
        if len(kernel_sizes) != 4 or not all(size > 0 and size % 2 for size in kernel_sizes):
            raise InputError(f"kernel_sizes={kernel_sizes} must be four odd sizes, as (5, 5, 3, 3)")
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"norm": norm, "rngs": rngs, **options}
        self.stem = ConvNormAct(in_channels, channels[0], **common)
        stages, shapes = [nnx.List(blocks(channels[0], 2, True, common))], [shape]
        sizes = (*kernel_sizes, kernel_sizes[3])
        for c_in, c_out, size in zip(channels, (*channels[1:], channels[4]), sizes, strict=True):
            padded: dict[str, int] = {"kernel_size": size, "padding": size // 2}
            layers, shape = stage(c_in, c_out, shape, **padded, residual=True, common=common)
            stages.append(layers)
            shapes.append(shape)
        self.stages = nnx.List(stages)
        ground = shapes[3][:2]  # cells of the fourth level, onto which the others are folded
        self.out = GrowingConv(channels[3], out_channels, 3, 1, 1, ground, ndim=2, **common)
        plain = {**common, "norm": last_norm}
        self.shared = ConvNormAct(out_channels, out_channels, ndim=2, use_bias=True, **plain)
        self.in_grid, self.capacity, self.out_channels = shapes[0], capacity, out_channels

    def levels(self, voxels: Voxels) -> tuple[Voxels, ...]:
        """Return the voxels of the six levels, and as seventh the output on the ground plane.

        Raises:
          InputError: as in :func:`voxax.models.voxel_backbone.inside_grid`.
        """
        levels = run_stages(self.stages, self.stem(inside_grid(voxels, self.in_grid)))
        with jax.named_scope("ground"):
            columns = fold_levels(levels[3:], self.capacity)
            rows = self.capacity
            if rows is None and _compat.is_traced(columns.coords):  # no plan knows the columns
                cells = voxels.batch_size * math.prod(self.out.grid)
                rows = min(len(self.out.conv.relation["kernel_shape"]) * columns.capacity, cells)
            grown = self.out(columns) if rows is None else self.out.within(columns, rows)
            return (*levels, self.shared(grown))

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels on the ground plane (axes x and y), with ``out_channels`` channels."""
        return self.levels(voxels)[-1]

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet and torch-pointcloud name and store the weights of this network.

        The result is a dict from a version's name, such as ``openpcdet``, to its ``Source``.
        """
        openpcdet, torch_pointcloud = _backbone_names()
        spconv, norms = Spconv("reversed"), "^(?!shared)"  # `shared` has PyTorch's defaults
        return {
            "openpcdet": Source(spconv, openpcdet, settings=norm_settings(*REFERENCE, norms)),
            **torch_pointcloud_sources(spconv, torch_pointcloud, norms),
        }


def _backbone_names() -> tuple[Any, ...]:
    """Return two functions from a layer's path to its name: in OpenPCDet, and in torch-pointcloud.

    The paths are those of layers in :class:`VoxelNeXtBackbone`.
    """

    def with_shared(names: Any) -> Any:
        return lambda path: names(path).replace("shared.", "shared_conv.", 1)

    return tuple(map(with_shared, backbone_names(residual=True)))


def fold_levels(levels: Sequence[Voxels], capacity: int | None = None) -> Voxels:
    """Sum the features of several levels over each column of voxels, along z.

    A voxel of a later level is added to the first level's column at the voxel's lower corner.

    Args:
      levels: voxels with axes x, y, z and the same channels. Each level has twice the stride of the
        previous level and was made from it. The result takes its count of lost rows from the last
        level, which includes those of the others.
      capacity: static number of rows of the result. None takes a sufficient number in eager calls,
        and the number of rows of all levels under ``jax.jit``.

    Returns:
      Voxels with axes x and y on the first level's lattice, one for each occupied column.

    Raises:
      CapacityError: there are more columns than ``capacity`` (only in eager calls). Under
        ``jax.jit`` the overflow is counted in ``num_dropped``.
    """
    columns = []
    for number, voxels in enumerate(levels):
        place = voxels.coords[:, 1:3] * 2**number
        rows = jnp.concatenate([voxels.coords[:, :1], place], axis=1)
        columns.append(jnp.where(voxels.valid[:, None], rows, PAD))
    found = unique_sites(jnp.concatenate(columns), capacity)
    # Padding rows have no place in the result, so their features are not read.
    features = jnp.concatenate([voxels.features for voxels in levels])
    features = reduce_rows(features, found.inverse, len(found.coords), "sum")
    first = levels[0]
    # Levels do not record which losses they share, so a sum would count those twice.
    source = levels[-1].geometry
    geometry = new_geometry(found, [source], stride=first.geometry.stride[:2])
    origin = first.origin.axes((0, 1)) if isinstance(first.origin, Origin) else ()
    return Voxels(geometry, features, first.voxel_size[:2], origin)


class VoxelNeXtOutput(NamedTuple):
    """Predictions at voxels of the ground plane.

    Attributes:
      voxels: voxels of the ground plane, with axes x and y.
      groups: for each group of classes a dict of arrays ``[capacity, channels]``. The entry ``hm``
        has the class logits, the others encode the boxes. Padding rows are zero.
    """

    voxels: Voxels
    groups: tuple[dict[str, jax.Array], ...]


class VoxelNeXt(Module):
    """VoxelNeXt detector: from voxels to predictions at sparse voxels of the ground plane.

    Args:
      in_channels: number of features of a voxel, which are the means over its points.
      num_classes: number of object classes.
      grid: numbers of cells along x, y and z, which are the range divided by the voxel size.
      groups: class numbers of each head; None is one head for all classes. Also an attribute.
      branches: number of channels of each predicted quantity, by name.
      head_kernel_size: kernel size of the heads' hidden layers.
      capacity, norm, channels, out_channels, kernel_sizes: as for :class:`VoxelNeXtBackbone`.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of all convolutions, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: as in :class:`VoxelNeXtBackbone`; or ``groups`` do not have each class once.
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        grid: Sequence[int] = (1440, 1440, 40),
        *,
        groups: Groups | None = None,
        branches: Mapping[str, int] = BRANCHES,
        head_kernel_size: int = 1,
        channels: Sequence[int] = (16, 32, 64, 128, 128),
        out_channels: int = 128,
        kernel_sizes: Sequence[int] = (3, 3, 3, 3),
        capacity: int | None = None,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"rngs": rngs, **options}
        sizes: dict[str, Any] = {"channels": channels, "out_channels": out_channels}
        sizes["kernel_sizes"] = kernel_sizes
        self.backbone_3d = VoxelNeXtBackbone(
            in_channels, grid, capacity=capacity, norm=norm, **sizes, **common
        )
        width, flat = out_channels, {**common, "ndim": 2}

        def hidden() -> ConvNormAct:
            return ConvNormAct(width, width, head_kernel_size, use_bias=True, norm=PLAIN, **flat)

        def last(channels: int, bias: float) -> SpatiallySparseConv:
            start = jax.nn.initializers.constant(bias)
            return SpatiallySparseConv(width, channels, 1, bias_init=start, **flat)

        self.groups = class_groups(groups, num_classes)
        self.head = Branches(self.groups, branches, hidden, last)

    def __call__(self, voxels: Voxels) -> VoxelNeXtOutput:
        """Return the predictions at voxels of the ground plane."""
        ground = self.backbone_3d(voxels)
        with jax.named_scope("heads"):
            found = self.head(ground)
        named = ({name: out.features for name, out in group.items()} for group in found)
        return VoxelNeXtOutput(ground, tuple(named))

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet and torch-pointcloud name and store the weights of this network.

        The result is a dict from a version's name, such as ``openpcdet``, to its ``Source``.
        """
        openpcdet, torch_pointcloud = _backbone_names()
        sparse = Spconv("reversed")

        def head(norm: str) -> Any:
            names = branch_names(norm)
            return lambda path: names(f"branches.{path}")

        parts = {
            "backbone_3d": ("backbone_3d", torch_pointcloud),
            "head": ("head", head(".module")),
        }
        norms = r"^backbone_3d\.(?!shared)"  # the others have PyTorch's defaults
        return {
            "openpcdet": Source(
                sparse,
                by_part(backbone_3d=("backbone_3d", openpcdet), head=("dense_head", head(""))),
                settings=norm_settings(*REFERENCE, norms),
            ),
            **torch_pointcloud_sources(sparse, by_part(**parts), norms),
        }
