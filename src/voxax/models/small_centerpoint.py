"""A small detector that predicts box centers, for quick training on few CPU cores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Unpack

from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.models.bev_backbone import BEVBackbone
from voxax.models.centerpoint import CenterDetector, CenterHead, Groups, class_groups
from voxax.models.minkunet import ConvNormAct, ResidualBlock
from voxax.models.voxel_backbone import run_stages
from voxax.nn.arguments import static
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import LayerOptions


class ColumnBackbone(Module):
    """Small sparse backbone: levels of stride 2, then a convolution of each column to one voxel.

    No convolution creates new sites, so no level has more voxels than the level before it.

    Args:
      in_channels: number of features of the voxels.
      grid: numbers of cells along x, y and z, multiples of ``2 ** (len(channels) - 1)``.
      channels: channels of the stem, then of each level.
      out_channels: channels of the output, which has one voxel per column.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of all convolutions, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Attributes:
      grid: numbers of cells of the output along x, y and z; one along z.
      stride: number of input cells per output cell along x and along y.

    Raises:
      InputError: ``grid`` is not divisible by ``stride``.
    """

    def __init__(
        self,
        in_channels: int,
        grid: Sequence[int],
        *,
        channels: Sequence[int] = (16, 32, 48),
        out_channels: int = 64,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        common: dict[str, Any] = {"rngs": own_rngs(rngs), **options}
        grid, self.stride = static(grid), 2 ** (len(channels) - 1)
        if len(grid) != 3 or min(grid) < 1 or any(n % self.stride for n in grid):
            raise InputError(
                f"grid={tuple(grid)} must be three multiples of {self.stride}, as {len(channels)} "
                "levels halve it"
            )
        x, y, height = (n // self.stride for n in grid)
        self.stem = ConvNormAct(in_channels, channels[0], **common)
        self.levels = nnx.List(
            [
                nnx.List([ConvNormAct(a, b, 2, 2, **common), ResidualBlock(b, b, **common)])
                for a, b in itertools.pairwise(channels)
            ]
        )
        column = (1, 1, height)
        self.columns = ConvNormAct(channels[-1], out_channels, column, column, **common)
        self.grid = (x, y, 1)
        self.out_channels = out_channels

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels with ``out_channels`` channels, one voxel for each occupied column along z.

        A column is a cell of the ground plane, ``stride`` input cells wide along x and y.
        """
        return self.columns(run_stages(self.levels, self.stem(voxels), "level")[-1])


class SmallCenterPoint(CenterDetector):
    """CenterPoint with few, narrow layers. A training step on two cores takes less than a second.

    Args:
      in_channels: number of features of the voxels.
      num_classes: number of object classes.
      grid: see :class:`ColumnBackbone`.
      groups: class numbers of each head; None is one head for all classes.
      width: factor on all channels.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: as in :class:`voxax.models.CenterPoint`.

    Raises:
      InputError: strides do not divide ``grid``, or ``groups`` do not have each class once.

    Examples:
      >>> model = models.SmallCenterPoint(4, 3, grid=(8, 8, 8), width=0.25, rngs=nnx.Rngs(0))
      >>> sorted(model(voxels)[0])
      ['code', 'hm']
    """

    def __init__(
        self,
        in_channels: int,
        num_classes: int,
        grid: Sequence[int],
        *,
        groups: Groups | None = None,
        width: float = 1.0,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        common: dict[str, Any] = {"rngs": own_rngs(rngs), **options}

        def wide(channels: int) -> int:
            return max(round(channels * width / 8), 1) * 8

        fine, coarse = wide(48), wide(64)
        self.backbone_3d = ColumnBackbone(
            in_channels, grid, channels=(wide(16), wide(32), fine), out_channels=fine, **common
        )
        self.backbone_2d = BEVBackbone(
            fine,
            layers=(1, 2),
            strides=(1, 2),
            channels=(fine, coarse),
            up_strides=(1, 2),
            up_channels=(fine, fine),
            norm={"momentum": 0.9},
            **common,
        )
        self.backbone_2d.check_grid(self.backbone_3d.grid[:2], self.backbone_3d.stride)
        # One stack predicts all numbers of a box; each of five stacks would cost as much.
        self.head = CenterHead(
            self.backbone_2d.out_channels,
            class_groups(groups, num_classes),
            branches={"code": 8},
            shared=fine,
            **common,
        )
