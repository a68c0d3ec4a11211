"""Layers with TorchSparse's names, and the modules ``functional`` and ``utils``."""

from voxax.torch.torchsparse.nn import functional as functional
from voxax.torch.torchsparse.nn import utils as utils
from voxax.torch.torchsparse.nn.bev import ToBEVConvolution as ToBEVConvolution
from voxax.torch.torchsparse.nn.bev import ToBEVHeightCompression as ToBEVHeightCompression
from voxax.torch.torchsparse.nn.bev import ToBEVReduction as ToBEVReduction
from voxax.torch.torchsparse.nn.bev import ToDenseBEVConvolution as ToDenseBEVConvolution
from voxax.torch.torchsparse.nn.layers import BatchNorm as BatchNorm
from voxax.torch.torchsparse.nn.layers import Conv3d as Conv3d
from voxax.torch.torchsparse.nn.layers import GlobalAvgPool as GlobalAvgPool
from voxax.torch.torchsparse.nn.layers import GlobalMaxPool as GlobalMaxPool
from voxax.torch.torchsparse.nn.layers import GroupNorm as GroupNorm
from voxax.torch.torchsparse.nn.layers import InstanceNorm as InstanceNorm
from voxax.torch.torchsparse.nn.layers import LeakyReLU as LeakyReLU
from voxax.torch.torchsparse.nn.layers import ReLU as ReLU
from voxax.torch.torchsparse.nn.layers import SiLU as SiLU
from voxax.torch.torchsparse.nn.layers import SparseCrop as SparseCrop
