"""Layers of TorchSparse 1.4: a convolution without padding, and the other layers of 2.1."""

from __future__ import annotations

from torch import nn

from voxax.torch.torchsparse.nn import layers as version_2_1
from voxax.torch.torchsparse.nn import utils as utils
from voxax.torch.torchsparse.nn.bev import ToBEVConvolution as ToBEVConvolution
from voxax.torch.torchsparse.nn.bev import ToBEVHeightCompression as ToBEVHeightCompression
from voxax.torch.torchsparse.nn.bev import ToBEVReduction as ToBEVReduction
from voxax.torch.torchsparse.nn.bev import ToDenseBEVConvolution as ToDenseBEVConvolution
from voxax.torch.torchsparse.nn.functional.kmap import Size
from voxax.torch.torchsparse.nn.layers import BatchNorm as BatchNorm
from voxax.torch.torchsparse.nn.layers import GlobalAvgPool as GlobalAvgPool
from voxax.torch.torchsparse.nn.layers import GlobalMaxPool as GlobalMaxPool
from voxax.torch.torchsparse.nn.layers import GroupNorm as GroupNorm
from voxax.torch.torchsparse.nn.layers import LeakyReLU as LeakyReLU
from voxax.torch.torchsparse.nn.layers import ReLU as ReLU
from voxax.torch.torchsparse.nn.layers import SparseCrop as SparseCrop
from voxax.torch.torchsparse.version_1_4 import functional as functional
from voxax.torch.torchsparse.version_1_4.tensor import SparseTensor


class Conv3d(version_2_1.Conv3d):
    """:class:`voxax.torch.torchsparse.nn.Conv3d` without padding.

    Attributes:
      kernel: ``[K, in_channels, out_channels]``, or ``[in_channels, out_channels]`` for one tap.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        dilation: int = 1,
        bias: bool = False,
        transposed: bool = False,
    ) -> None:
        args = in_channels, out_channels, kernel_size, stride, 0, dilation, bias, transposed
        super().__init__(*args)
        if self.kernel_volume == 1:
            self.kernel = nn.Parameter(self.kernel.detach().reshape(in_channels, out_channels))

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return the convolution of a sparse tensor."""
        args = self.kernel, self.kernel_size, self.bias, self.stride, self.dilation
        return functional.conv3d(input, *args, self.transposed)
