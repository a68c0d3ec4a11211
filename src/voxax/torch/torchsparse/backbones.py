"""Define TorchSparse's example networks: residual networks and U-Nets of sparse convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from voxax.torch.torchsparse import nn as spnn
from voxax.torch.torchsparse.operators import cat
from voxax.torch.torchsparse.tensor import SparseTensor
from voxax.torch.torchsparse.utils.grids import make_ntuple

Size = int | tuple[int, ...]


class SparseConvBlock(nn.Sequential):
    """Sequence of a sparse convolution, a batch norm and a ReLU."""

    _transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        dilation: int = 1,
    ) -> None:
        channels, options = (in_channels, out_channels), {"transposed": self._transposed}
        super().__init__(
            spnn.Conv3d(*channels, kernel_size, stride, dilation=dilation, **options),
            spnn.BatchNorm(out_channels),
            spnn.ReLU(True),
        )


class SparseConvTransposeBlock(SparseConvBlock):
    """Sequence of a transposed sparse convolution, a batch norm and a ReLU.

    The outputs are at the input voxels of an earlier convolution with the same kernel size and
    stride.
    """

    _transposed = True


class SparseResBlock(nn.Module):
    """Residual block of two convolutions.

    The shortcut is the identity, or a 1x1x1 convolution if channels change or the stride is not 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *SparseConvBlock(in_channels, out_channels, kernel_size, stride, dilation),
            *list(SparseConvBlock(out_channels, out_channels, kernel_size, 1, dilation))[:2],
        )
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or make_ntuple(stride, ndim=3) != (1, 1, 1):
            shortcut = SparseConvBlock(in_channels, out_channels, 1, stride)
            self.shortcut = nn.Sequential(*list(shortcut)[:2])
        self.relu = spnn.ReLU(True)

    def forward(self, x: SparseTensor) -> SparseTensor:
        """Return the ReLU of the convolutions' output plus the shortcut's output."""
        return self.relu(self.main(x) + self.shortcut(x))


class SparseResNet(nn.ModuleList):
    """Residual network of several stages, which returns the output of each stage.

    ``blocks`` has a tuple for each stage: number of blocks, channels, kernel size, and stride of
    the first block. ``width_multiplier`` scales the channels of all stages.
    """

    def __init__(
        self, blocks: Sequence[Any], *, in_channels: int = 4, width_multiplier: float = 1.0
    ) -> None:
        super().__init__()
        self.blocks, self.in_channels = blocks, in_channels
        self.width_multiplier = width_multiplier
        for number, channels, kernel_size, stride in blocks:
            width = int(channels * width_multiplier)
            rest = (SparseResBlock(width, width, kernel_size) for _ in range(number - 1))
            first = SparseConvBlock(in_channels, width, kernel_size, stride)
            self.append(nn.Sequential(first, *rest))
            in_channels = width

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        """Return the list of the outputs of all stages."""
        outputs = [x]
        for stage in self:
            outputs.append(stage(outputs[-1]))
        return outputs[1:]


class SparseResNet21D(SparseResNet):
    """A :class:`SparseResNet` of five stages; the last stage halves the second spatial axis."""

    def __init__(self, **kwargs: Any) -> None:
        stages = [(3, 16, 3, 1), (3, 32, 3, 2), (3, 64, 3, 2), (3, 128, 3, 2)]
        super().__init__([*stages, (1, 128, (1, 3, 1), (1, 2, 1))], **kwargs)


class SparseResUNet(nn.Module):
    """U-Net of a stem, four encoders and four decoders, which returns all nine outputs.

    ``encoder_channels`` and ``decoder_channels`` have the output channels of each encoder and
    decoder. ``width_multiplier`` scales all numbers of channels but ``in_channels``.
    """

    def __init__(
        self,
        stem_channels: int,
        encoder_channels: list[int],
        decoder_channels: list[int],
        *,
        in_channels: int = 4,
        width_multiplier: float = 1.0,
    ) -> None:
        super().__init__()
        self.stem_channels, self.in_channels = stem_channels, in_channels
        self.encoder_channels, self.decoder_channels = encoder_channels, decoder_channels
        self.width_multiplier = width_multiplier
        numbers = [stem_channels, *encoder_channels, *decoder_channels]
        stem, *widths = (int(width_multiplier * number) for number in numbers)
        down, up = [stem, *widths[:4]], [widths[3], *widths[4:]]
        self.stem = nn.Sequential(
            *SparseConvBlock(in_channels, stem, 3), *SparseConvBlock(stem, stem, 3)
        )
        self.encoders = nn.ModuleList(
            nn.Sequential(
                SparseConvBlock(width, width, 2, stride=2),
                SparseResBlock(width, wider, 3),
                SparseResBlock(wider, wider, 3),
            )
            for width, wider in itertools.pairwise(down)
        )
        self.decoders = nn.ModuleList()
        for width, out, skip in zip(up[:-1], up[1:], down[3::-1], strict=True):
            upsample = SparseConvTransposeBlock(width, out, 2, stride=2)
            fuse = nn.Sequential(SparseResBlock(out + skip, out, 3), SparseResBlock(out, out, 3))
            self.decoders.append(nn.ModuleDict({"upsample": upsample, "fuse": fuse}))

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        """Return the list of nine outputs: stem, four encoders, four decoders."""
        outputs = [self.stem(x)]
        for encoder in self.encoders:
            outputs.append(encoder(outputs[-1]))
        for level, module in enumerate(self.decoders):
            decoder = cast(nn.ModuleDict, module)
            raised = decoder["upsample"](outputs[-1])
            outputs.append(decoder["fuse"](cat([raised, outputs[3 - level]])))
        return outputs


class SparseResUNet42(SparseResUNet):
    """A :class:`SparseResUNet` with 32 to 256 channels."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(32, [32, 64, 128, 256], [256, 128, 96, 96], **kwargs)
