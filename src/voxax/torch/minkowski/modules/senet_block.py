"""Residual blocks with squeeze and excitation (SENet)."""

from __future__ import annotations

from typing import Any

from torch import nn

from voxax.torch.minkowski.broadcast import MinkowskiBroadcastMultiplication
from voxax.torch.minkowski.modules.resnet_block import BasicBlock, Bottleneck
from voxax.torch.minkowski.nonlinearity import LAYERS
from voxax.torch.minkowski.ops import MinkowskiLinear
from voxax.torch.minkowski.pooling import MinkowskiGlobalPooling


class SELayer(nn.Module):
    """Layer that scales channels by factors that linear layers compute from each scene's means.

    Args:
      channel: number of channels.
      reduction: ratio of ``channel`` to the number of channels between the two linear layers.
      D: number of spatial axes, unused.
    """

    def __init__(self, channel: int, reduction: int = 16, D: int = -1) -> None:
        super().__init__()
        del D
        self.fc = nn.Sequential(
            MinkowskiLinear(channel, channel // reduction),
            LAYERS["MinkowskiReLU"](inplace=True),
            MinkowskiLinear(channel // reduction, channel),
            LAYERS["MinkowskiSigmoid"](),
        )
        self.pooling = MinkowskiGlobalPooling()
        self.broadcast_mul = MinkowskiBroadcastMultiplication()

    def forward(self, x: Any) -> Any:
        """Return a tensor with the scaled features."""
        return self.broadcast_mul(x, self.fc(self.pooling(x)))


class SEBasicBlock(BasicBlock):
    """A :class:`BasicBlock` of ``D`` axes with an :class:`SELayer` before the residual sum.

    ``reduction`` is that of the :class:`SELayer`. Other arguments are as in :class:`BasicBlock`.
    """

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: nn.Module | None = None,
        reduction: int = 16,
        D: int = -1,
    ) -> None:
        super().__init__(inplanes, planes, stride, dilation, downsample, dimension=D)
        self.se = SELayer(planes, reduction, D)

    def _branch(self, x: Any) -> Any:
        return self.se(super()._branch(x))


class SEBottleneck(Bottleneck):
    """A :class:`Bottleneck` of ``D`` axes with an :class:`SELayer` before the residual sum.

    ``reduction`` is that of the :class:`SELayer`. Other arguments are as in :class:`Bottleneck`.
    """

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: nn.Module | None = None,
        D: int = 3,
        reduction: int = 16,
    ) -> None:
        super().__init__(inplanes, planes, stride, dilation, downsample, dimension=D)
        self.se = SELayer(planes * self.expansion, reduction, D)

    def _branch(self, x: Any) -> Any:
        return self.se(super()._branch(x))
