"""Run code for TorchSparse 2.1 on the CPU, with ``import voxax.torch.torchsparse as torchsparse``.

This line replaces ``import torchsparse``. The layers call voxax's native kernels directly, so
nothing is compiled when the number of voxels changes.
"""

from voxax.torch.torchsparse import backbones as backbones
from voxax.torch.torchsparse import backend as backend
from voxax.torch.torchsparse import backends as backends
from voxax.torch.torchsparse import nn as nn
from voxax.torch.torchsparse import utils as utils
from voxax.torch.torchsparse.aliases import install as install
from voxax.torch.torchsparse.aliases import uninstall as uninstall
from voxax.torch.torchsparse.backends import tune as tune
from voxax.torch.torchsparse.operators import cat as cat
from voxax.torch.torchsparse.operators import generative_add as generative_add
from voxax.torch.torchsparse.tensor import PointTensor as PointTensor
from voxax.torch.torchsparse.tensor import SparseTensor as SparseTensor
from voxax.torch.torchsparse.utils import collate as collate
from voxax.torch.torchsparse.utils import quantize as quantize
from voxax.torch.torchsparse.utils import tensor_cache as tensor_cache

from voxax.torch.torchsparse import version_1_4 as version_1_4  # isort: skip (of the above)

__version__ = "2.1.0"
"""The version of TorchSparse that this package follows."""
