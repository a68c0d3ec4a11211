"""MinkUNet of PyTorch modules, layer for layer and name for name that of :mod:`voxax.models`.

Source: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional
Neural Networks", CVPR 2019.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from voxax.nn.minkunet_stages import BLOCKS, PLANES, Stage, minkunet_stages
from voxax.torch.integers import whole
from voxax.torch.modules import BatchNorm, Linear, ReLU, Sequential, SpatiallySparseConv
from voxax.torch.voxels import Voxels, cat


class ConvNormAct(nn.Module):
    """Convolution without bias, batch normalization, ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        sizes = (in_channels, out_channels, kernel_size, stride)
        self.conv = SpatiallySparseConv(*sizes, bias=False, **options)
        self.norm = BatchNorm(out_channels, dtype=options.get("dtype"))
        self.act = ReLU()

    def forward(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        return self.act(self.norm(self.conv(voxels, out_voxels)))


class ResidualBlock(nn.Module):
    """Two 3-wide submanifold convolutions and a shortcut (basic block of He et al. 2016)."""

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        self.first = ConvNormAct(in_channels, out_channels, **options)
        self.second = SpatiallySparseConv(out_channels, out_channels, 3, bias=False, **options)
        dtype = options.get("dtype")
        self.norm = BatchNorm(out_channels, dtype=dtype)
        self.act = ReLU()
        shortcut: list[nn.Module] = []
        if in_channels != out_channels:
            linear = Linear(in_channels, out_channels, bias=False, dtype=dtype)
            shortcut = [linear, BatchNorm(out_channels, dtype=dtype)]
        self.shortcut = Sequential(*shortcut)

    def forward(self, voxels: Voxels) -> Voxels:
        residual = self.norm(self.second(self.first(voxels)))
        return self.act(residual + self.shortcut(voxels))


class MinkUNet(nn.Module):
    """Stem, four levels down by stride 2, four levels up onto the skips' voxels, head.

    Args:
      in_channels, out_channels: input features and classes.
      blocks, planes, stem, width, stem_kernel_size: as in :class:`voxax.models.MinkUNet`.
      options: ``dtype``, ``fwd_algo``, ``bwd_algo``, ``precision`` and ``ndim``, handed to every
        convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        blocks: Sequence[int] = BLOCKS[34],
        planes: Sequence[int] = PLANES,
        stem: int = 32,
        width: float = 1.0,
        stem_kernel_size: int = 3,
        **options: Any,
    ) -> None:
        super().__init__()
        blocks, planes = [[whole("blocks and planes", n) for n in ns] for ns in (blocks, planes)]
        stages = minkunet_stages(blocks, planes, whole("stem", stem), width)
        self.stem = ConvNormAct(in_channels, stages.stem, stem_kernel_size, **options)
        self.stem_second = ConvNormAct(stages.stem, stages.stem, 3, **options)

        def level(stage: Stage, **direction: bool) -> tuple[ConvNormAct, nn.ModuleList]:
            convolution = ConvNormAct(*stage.convolution, 2, 2, **direction, **options)
            return convolution, nn.ModuleList([ResidualBlock(*c, **options) for c in stage.blocks])

        down, down_blocks = zip(*map(level, stages.down), strict=True)
        up, up_blocks = zip(*[level(s, transposed=True) for s in stages.up], strict=True)
        self.down, self.down_blocks = nn.ModuleList(down), nn.ModuleList(down_blocks)
        self.up, self.up_blocks = nn.ModuleList(up), nn.ModuleList(up_blocks)
        self.head = Linear(stages.head, out_channels, dtype=options.get("dtype"))

    def forward(self, voxels: Voxels) -> Voxels:
        """Return logits ``[capacity, out_channels]`` on the input's voxels."""
        voxels = self.stem_second(self.stem(voxels))
        skips = []
        for down, blocks in zip(self.down, self.down_blocks, strict=True):
            skips.append(voxels)
            voxels = down(voxels)
            for block in blocks:  # type: ignore[attr-defined]
                voxels = block(voxels)
        for up, blocks in zip(self.up, self.up_blocks, strict=True):
            skip = skips.pop()
            voxels = cat([up(voxels, skip), skip])
            for block in blocks:  # type: ignore[attr-defined]
                voxels = block(voxels)
        return self.head(voxels)


def MinkUNet14(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return :func:`voxax.models.MinkUNet14` of PyTorch modules."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[14], **options)


def MinkUNet18(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return :func:`voxax.models.MinkUNet18` of PyTorch modules."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[18], **options)


def MinkUNet34(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return :func:`voxax.models.MinkUNet34` of PyTorch modules."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[34], **options)
