"""Residual blocks of MinkowskiEngine's ``modules``."""

from voxax.torch.minkowski.modules.resnet_block import BasicBlock as BasicBlock
from voxax.torch.minkowski.modules.resnet_block import Bottleneck as Bottleneck
from voxax.torch.minkowski.modules.senet_block import SEBasicBlock as SEBasicBlock
from voxax.torch.minkowski.modules.senet_block import SEBottleneck as SEBottleneck
from voxax.torch.minkowski.modules.senet_block import SELayer as SELayer
