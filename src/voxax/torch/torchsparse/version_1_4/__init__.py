"""Run code for TorchSparse 1.4: ``import voxax.torch.torchsparse.version_1_4 as torchsparse``.

Coordinates are x, y, z (multiples of the stride) and the batch index. Layers have no padding.
"""

from voxax.torch.torchsparse.aliases import install_1_4 as install
from voxax.torch.torchsparse.aliases import uninstall_1_4 as uninstall
from voxax.torch.torchsparse.operators import cat as cat
from voxax.torch.torchsparse.tensor import PointTensor as PointTensor
from voxax.torch.torchsparse.version_1_4 import nn as nn
from voxax.torch.torchsparse.version_1_4 import utils as utils
from voxax.torch.torchsparse.version_1_4.tensor import SparseTensor as SparseTensor

__all__ = ["PointTensor", "SparseTensor", "cat", "install", "nn", "uninstall", "utils"]
__version__ = "1.4.0"
"""The version of TorchSparse that this package follows."""
