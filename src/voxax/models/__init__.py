"""Networks. Needs ``pip install "voxax[nn]"``."""

from voxax.models.minkunet import ConvNormAct as ConvNormAct
from voxax.models.minkunet import MinkUNet as MinkUNet
from voxax.models.minkunet import MinkUNet14 as MinkUNet14
from voxax.models.minkunet import MinkUNet18 as MinkUNet18
from voxax.models.minkunet import MinkUNet34 as MinkUNet34
from voxax.models.minkunet import ResidualBlock as ResidualBlock
from voxax.models.voxel_mlp import VoxelMLP as VoxelMLP
