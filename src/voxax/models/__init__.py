"""Networks. Needs ``pip install "voxax[nn]"``."""

from voxax.models.blocks import ConvNormAct as ConvNormAct
from voxax.models.blocks import ResidualBlock as ResidualBlock
from voxax.models.minkunet import MinkUNet as MinkUNet
from voxax.models.minkunet import MinkUNet14 as MinkUNet14
from voxax.models.minkunet import MinkUNet18 as MinkUNet18
from voxax.models.minkunet import MinkUNet34 as MinkUNet34
from voxax.models.pointwise import VoxelMLP as VoxelMLP
