"""Run code for spconv's PyTorch layers on the CPU, with ``import voxax.torch.spconv as spconv``.

This line replaces ``import spconv.pytorch as spconv``. The layers call voxax's native kernels
directly, so nothing is compiled when the number of voxels changes.
"""

from voxax.torch.core.errors import ArgumentError
from voxax.torch.spconv import constants as constants
from voxax.torch.spconv import functional as functional
from voxax.torch.spconv import ops as ops
from voxax.torch.spconv import utils as utils
from voxax.torch.spconv.algo import AlgoHint as AlgoHint
from voxax.torch.spconv.algo import ConvAlgo as ConvAlgo
from voxax.torch.spconv.aliases import install as install
from voxax.torch.spconv.aliases import uninstall as uninstall
from voxax.torch.spconv.conv import SparseConv1d as SparseConv1d
from voxax.torch.spconv.conv import SparseConv2d as SparseConv2d
from voxax.torch.spconv.conv import SparseConv3d as SparseConv3d
from voxax.torch.spconv.conv import SparseConv4d as SparseConv4d
from voxax.torch.spconv.conv import SparseConvTranspose1d as SparseConvTranspose1d
from voxax.torch.spconv.conv import SparseConvTranspose2d as SparseConvTranspose2d
from voxax.torch.spconv.conv import SparseConvTranspose3d as SparseConvTranspose3d
from voxax.torch.spconv.conv import SparseConvTranspose4d as SparseConvTranspose4d
from voxax.torch.spconv.conv import SparseInverseConv1d as SparseInverseConv1d
from voxax.torch.spconv.conv import SparseInverseConv2d as SparseInverseConv2d
from voxax.torch.spconv.conv import SparseInverseConv3d as SparseInverseConv3d
from voxax.torch.spconv.conv import SparseInverseConv4d as SparseInverseConv4d
from voxax.torch.spconv.conv import SubMConv1d as SubMConv1d
from voxax.torch.spconv.conv import SubMConv2d as SubMConv2d
from voxax.torch.spconv.conv import SubMConv3d as SubMConv3d
from voxax.torch.spconv.conv import SubMConv4d as SubMConv4d
from voxax.torch.spconv.core import SparseConvTensor as SparseConvTensor
from voxax.torch.spconv.core import strict as strict
from voxax.torch.spconv.identity import Identity as Identity
from voxax.torch.spconv.modules import RemoveGrid as RemoveGrid
from voxax.torch.spconv.modules import SparseBatchNorm as SparseBatchNorm
from voxax.torch.spconv.modules import SparseIdentity as SparseIdentity
from voxax.torch.spconv.modules import SparseModule as SparseModule
from voxax.torch.spconv.modules import SparseReLU as SparseReLU
from voxax.torch.spconv.modules import SparseSequential as SparseSequential
from voxax.torch.spconv.modules import SparseSyncBatchNorm as SparseSyncBatchNorm
from voxax.torch.spconv.modules import ToDense as ToDense
from voxax.torch.spconv.modules import (
    assign_name_for_sparse_modules as assign_name_for_sparse_modules,
)
from voxax.torch.spconv.pool import SparseAvgPool1d as SparseAvgPool1d
from voxax.torch.spconv.pool import SparseAvgPool2d as SparseAvgPool2d
from voxax.torch.spconv.pool import SparseAvgPool3d as SparseAvgPool3d
from voxax.torch.spconv.pool import SparseGlobalAvgPool as SparseGlobalAvgPool
from voxax.torch.spconv.pool import SparseGlobalMaxPool as SparseGlobalMaxPool
from voxax.torch.spconv.pool import SparseMaxPool1d as SparseMaxPool1d
from voxax.torch.spconv.pool import SparseMaxPool2d as SparseMaxPool2d
from voxax.torch.spconv.pool import SparseMaxPool3d as SparseMaxPool3d
from voxax.torch.spconv.pool import SparseMaxPool4d as SparseMaxPool4d
from voxax.torch.spconv.tables import AddTable as AddTable
from voxax.torch.spconv.tables import AddTableMisaligned as AddTableMisaligned
from voxax.torch.spconv.tables import ConcatTable as ConcatTable
from voxax.torch.spconv.tables import JoinTable as JoinTable

SpconvError = ArgumentError
"""Error for wrong arguments: an ``InputError`` and, as in spconv, also an ``AssertionError``."""
__version__ = "2.3.8"
"""The version of spconv that this package follows."""
SPCONV_VERSION_NUMBERS = [2, 3, 8]
