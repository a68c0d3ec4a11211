"""Residual blocks of ResNet with sparse convolutions."""

from __future__ import annotations

from typing import Any

from torch import nn

from voxax.torch.minkowski.convolution import MinkowskiConvolution
from voxax.torch.minkowski.nonlinearity import LAYERS
from voxax.torch.minkowski.normalization import MinkowskiBatchNorm


class _Block(nn.Module):
    """Base of residual blocks with convolutions ``conv1``, ... and batch norms ``norm1``, ..."""

    expansion = 1
    downsample: nn.Module | None

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: nn.Module | None = None,
        bn_momentum: float = 0.1,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        self._names: list[tuple[str, str]] = []
        for c_in, c_out, options in self._layers(inplanes, planes, stride, dilation):
            conv, norm = f"conv{len(self._names) + 1}", f"norm{len(self._names) + 1}"
            layer = MinkowskiConvolution(c_in, c_out, dimension=dimension, **options)
            self.add_module(conv, layer)
            self.add_module(norm, MinkowskiBatchNorm(c_out, momentum=bn_momentum))
            self._names.append((conv, norm))
        self.relu = LAYERS["MinkowskiReLU"](inplace=True)
        self.downsample = downsample

    def _layers(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Any]:
        raise NotImplementedError

    def _branch(self, x: Any) -> Any:
        for number, (conv, norm) in enumerate(self._names):
            x = getattr(self, norm)(getattr(self, conv)(self.relu(x) if number else x))
        return x

    def forward(self, x: Any) -> Any:
        """Return the ReLU of the sum of the convolutions' output and the shortcut."""
        out = self._branch(x)
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class BasicBlock(_Block):
    """Residual block with two convolutions of kernel size 3.

    Args:
      inplanes, planes: numbers of input and output channels.
      stride: stride of the first convolution.
      dilation: dilation of both convolutions.
      downsample: module of the shortcut, applied to the input; None adds the input unchanged.
      bn_momentum: momentum of the batch norms.
      dimension: number of spatial axes.
    """

    def _layers(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Any]:
        three = {"kernel_size": 3, "dilation": dilation}
        return [(inplanes, planes, {"stride": stride, **three}), (planes, planes, three)]


class Bottleneck(_Block):
    """Residual block with a convolution of kernel size 3 between two of kernel size 1.

    Arguments are as in :class:`BasicBlock`, but the output has ``4 * planes`` channels.
    """

    expansion = 4

    def _layers(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Any]:
        one, three = {"kernel_size": 1}, {"kernel_size": 3, "stride": stride, "dilation": dilation}
        wide = planes, planes * self.expansion, one
        return [(inplanes, planes, one), (planes, planes, three), wide]
