"""flax.nnx modules over :mod:`voxax.nn.functional`. Needs ``pip install "voxax[nn]"``."""

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.nn.modules needs flax: pip install "voxax[nn]"') from _error

from voxax.nn.modules.activation import GELU as GELU
from voxax.nn.modules.activation import Activation as Activation
from voxax.nn.modules.activation import LeakyReLU as LeakyReLU
from voxax.nn.modules.activation import ReLU as ReLU
from voxax.nn.modules.activation import SiLU as SiLU
from voxax.nn.modules.container import Sequential as Sequential
from voxax.nn.modules.conv import SpatiallySparseConv as SpatiallySparseConv
from voxax.nn.modules.conv import SpatiallySparseDepthwiseConv as SpatiallySparseDepthwiseConv
from voxax.nn.modules.conv_by_ndim import SparseConv1d as SparseConv1d
from voxax.nn.modules.conv_by_ndim import SparseConv2d as SparseConv2d
from voxax.nn.modules.conv_by_ndim import SparseConv3d as SparseConv3d
from voxax.nn.modules.conv_by_ndim import SparseConv4d as SparseConv4d
from voxax.nn.modules.conv_by_ndim import SparseConvTranspose as SparseConvTranspose
from voxax.nn.modules.conv_by_ndim import SparseConvTranspose1d as SparseConvTranspose1d
from voxax.nn.modules.conv_by_ndim import SparseConvTranspose2d as SparseConvTranspose2d
from voxax.nn.modules.conv_by_ndim import SparseConvTranspose3d as SparseConvTranspose3d
from voxax.nn.modules.conv_by_ndim import SparseConvTranspose4d as SparseConvTranspose4d
from voxax.nn.modules.conv_by_ndim import SubMConv as SubMConv
from voxax.nn.modules.conv_by_ndim import SubMConv1d as SubMConv1d
from voxax.nn.modules.conv_by_ndim import SubMConv2d as SubMConv2d
from voxax.nn.modules.conv_by_ndim import SubMConv3d as SubMConv3d
from voxax.nn.modules.conv_by_ndim import SubMConv4d as SubMConv4d
from voxax.nn.modules.coordinates import Batch as Batch
from voxax.nn.modules.coordinates import Cat as Cat
from voxax.nn.modules.coordinates import Coarsen as Coarsen
from voxax.nn.modules.coordinates import Crop as Crop
from voxax.nn.modules.coordinates import Dilate as Dilate
from voxax.nn.modules.coordinates import Inject as Inject
from voxax.nn.modules.coordinates import Intersection as Intersection
from voxax.nn.modules.coordinates import Prune as Prune
from voxax.nn.modules.coordinates import Refine as Refine
from voxax.nn.modules.coordinates import ToBEV as ToBEV
from voxax.nn.modules.coordinates import TopK as TopK
from voxax.nn.modules.coordinates import Union as Union
from voxax.nn.modules.deform_conv import DeformConv as DeformConv
from voxax.nn.modules.dropout import Dropout as Dropout
from voxax.nn.modules.dynamic import DynamicConv as DynamicConv
from voxax.nn.modules.encoder import PillarEncoder as PillarEncoder
from voxax.nn.modules.encoder import VoxelFeatureEncoder as VoxelFeatureEncoder
from voxax.nn.modules.focal_conv import FocalConv as FocalConv
from voxax.nn.modules.gaussian_blur import GaussianBlur as GaussianBlur
from voxax.nn.modules.involution import Involution as Involution
from voxax.nn.modules.linear import Linear as Linear
from voxax.nn.modules.norm import BatchNorm as BatchNorm
from voxax.nn.modules.norm import GroupNorm as GroupNorm
from voxax.nn.modules.norm import InstanceNorm as InstanceNorm
from voxax.nn.modules.norm import LayerNorm as LayerNorm
from voxax.nn.modules.norm import RMSNorm as RMSNorm
from voxax.nn.modules.pixel_adaptive_conv import PixelAdaptiveConv as PixelAdaptiveConv
from voxax.nn.modules.point_convs import ContinuousConv as ContinuousConv
from voxax.nn.modules.point_convs import KernelPointConv as KernelPointConv
from voxax.nn.modules.point_convs import PointConv as PointConv
from voxax.nn.modules.points import Devoxelize as Devoxelize
from voxax.nn.modules.points import Splat as Splat
from voxax.nn.modules.points import Voxelize as Voxelize
from voxax.nn.modules.pooling import ChannelToSpace as ChannelToSpace
from voxax.nn.modules.pooling import GlobalPool as GlobalPool
from voxax.nn.modules.pooling import MaxPool as MaxPool
from voxax.nn.modules.pooling import MeanPool as MeanPool
from voxax.nn.modules.pooling import MinPool as MinPool
from voxax.nn.modules.pooling import SpaceToChannel as SpaceToChannel
from voxax.nn.modules.pooling import SumPool as SumPool
from voxax.nn.modules.pooling import Unpool as Unpool
from voxax.nn.modules.remat import Remat as Remat
from voxax.nn.modules.scene_kernels import MixtureConv as MixtureConv
from voxax.nn.modules.scene_kernels import SelectiveConv as SelectiveConv
from voxax.nn.modules.sparse_dynamic_conv import SparseDynamicConv as SparseDynamicConv
from voxax.nn.modules.sparse_dynamic_conv import SparseDynamicConv2d as SparseDynamicConv2d
from voxax.nn.modules.sparse_dynamic_conv import SparseDynamicConv3d as SparseDynamicConv3d
from voxax.nn.modules.spectral_stride import SpectralStride as SpectralStride
