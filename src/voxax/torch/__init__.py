"""voxax's operators as PyTorch modules, on the CPU. Needs ``pip install "voxax[torch]"``."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from voxax.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401  (before the modules below, for one message)
except ImportError as error:
    raise MissingExtraError('voxax.torch needs PyTorch: pip install "voxax[torch]"') from error

from voxax.torch.bridge import to_jax as to_jax
from voxax.torch.bridge import to_torch as to_torch
from voxax.torch.functional import global_pool as global_pool
from voxax.torch.functional import max_pool as max_pool
from voxax.torch.functional import mean_pool as mean_pool
from voxax.torch.functional import min_pool as min_pool
from voxax.torch.functional import spatially_sparse_conv as spatially_sparse_conv
from voxax.torch.functional import sum_pool as sum_pool
from voxax.torch.geometry import KernelMap as KernelMap
from voxax.torch.geometry import VoxelGeometry as VoxelGeometry
from voxax.torch.minkunet import MinkUNet as MinkUNet
from voxax.torch.minkunet import MinkUNet14 as MinkUNet14
from voxax.torch.minkunet import MinkUNet18 as MinkUNet18
from voxax.torch.minkunet import MinkUNet34 as MinkUNet34
from voxax.torch.modules import BatchNorm as BatchNorm
from voxax.torch.modules import GlobalPool as GlobalPool
from voxax.torch.modules import Linear as Linear
from voxax.torch.modules import MaxPool as MaxPool
from voxax.torch.modules import MeanPool as MeanPool
from voxax.torch.modules import MinPool as MinPool
from voxax.torch.modules import ReLU as ReLU
from voxax.torch.modules import Sequential as Sequential
from voxax.torch.modules import SparseConv2d as SparseConv2d
from voxax.torch.modules import SparseConv3d as SparseConv3d
from voxax.torch.modules import SparseConvTranspose as SparseConvTranspose
from voxax.torch.modules import SparseConvTranspose3d as SparseConvTranspose3d
from voxax.torch.modules import SpatiallySparseConv as SpatiallySparseConv
from voxax.torch.modules import SpatiallySparseDepthwiseConv as SpatiallySparseDepthwiseConv
from voxax.torch.modules import SubMConv3d as SubMConv3d
from voxax.torch.modules import SumPool as SumPool
from voxax.torch.voxels import Voxels as Voxels
from voxax.torch.voxels import cat as cat
from voxax.torch.voxels import plan as plan
from voxax.torch.voxels import voxelize as voxelize
