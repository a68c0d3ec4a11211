"""flax.nnx modules over :mod:`voxax.nn.functional`. Needs ``pip install "voxax[nn]"``."""

from typing import TYPE_CHECKING

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.nn.modules needs flax: pip install "voxax[nn]"') from _error

from voxax.nn import removed as _removed
from voxax.nn.modules.attention import MLP as MLP
from voxax.nn.modules.attention import ConditionalPosition as ConditionalPosition
from voxax.nn.modules.attention import CrossAttention as CrossAttention
from voxax.nn.modules.attention import CylinderAttention as CylinderAttention
from voxax.nn.modules.attention import RelativeTable as RelativeTable
from voxax.nn.modules.attention import SceneAttention as SceneAttention
from voxax.nn.modules.attention import SerializedAttention as SerializedAttention
from voxax.nn.modules.attention import SerialOrders as SerialOrders
from voxax.nn.modules.attention import WindowAttention as WindowAttention
from voxax.nn.modules.attention import relative_reach as relative_reach
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
from voxax.nn.modules.dynamic_convs import DeformConv as DeformConv
from voxax.nn.modules.dynamic_convs import DynamicConv as DynamicConv
from voxax.nn.modules.dynamic_convs import FocalConv as FocalConv
from voxax.nn.modules.dynamic_convs import SparseDynamicConv as SparseDynamicConv
from voxax.nn.modules.dynamic_convs import SparseDynamicConv2d as SparseDynamicConv2d
from voxax.nn.modules.dynamic_convs import SparseDynamicConv3d as SparseDynamicConv3d
from voxax.nn.modules.encoder import PillarEncoder as PillarEncoder
from voxax.nn.modules.encoder import VoxelFeatureEncoder as VoxelFeatureEncoder
from voxax.nn.modules.grid_pools import GridPool as GridPool
from voxax.nn.modules.grid_pools import GridUnpool as GridUnpool
from voxax.nn.modules.norm import BatchNorm as BatchNorm
from voxax.nn.modules.norm import GroupNorm as GroupNorm
from voxax.nn.modules.norm import InstanceNorm as InstanceNorm
from voxax.nn.modules.norm import LayerNorm as LayerNorm
from voxax.nn.modules.norm import RMSNorm as RMSNorm
from voxax.nn.modules.point_convs import ContinuousConv as ContinuousConv
from voxax.nn.modules.point_convs import KernelPointConv as KernelPointConv
from voxax.nn.modules.pointwise import GELU as GELU
from voxax.nn.modules.pointwise import Activation as Activation
from voxax.nn.modules.pointwise import Dropout as Dropout
from voxax.nn.modules.pointwise import DropPath as DropPath
from voxax.nn.modules.pointwise import LayerScale as LayerScale
from voxax.nn.modules.pointwise import LeakyReLU as LeakyReLU
from voxax.nn.modules.pointwise import Linear as Linear
from voxax.nn.modules.pointwise import ReLU as ReLU
from voxax.nn.modules.pointwise import SiLU as SiLU
from voxax.nn.modules.pools import ChannelToSpace as ChannelToSpace
from voxax.nn.modules.pools import GlobalPool as GlobalPool
from voxax.nn.modules.pools import MaxPool as MaxPool
from voxax.nn.modules.pools import MeanPool as MeanPool
from voxax.nn.modules.pools import MinPool as MinPool
from voxax.nn.modules.pools import SpaceToChannel as SpaceToChannel
from voxax.nn.modules.pools import SumPool as SumPool
from voxax.nn.modules.pools import Unpool as Unpool
from voxax.nn.modules.remat import Remat as Remat
from voxax.nn.modules.sequential import Sequential as Sequential
from voxax.nn.modules.sparse_convs import SparseConv1d as SparseConv1d
from voxax.nn.modules.sparse_convs import SparseConv2d as SparseConv2d
from voxax.nn.modules.sparse_convs import SparseConv3d as SparseConv3d
from voxax.nn.modules.sparse_convs import SparseConv4d as SparseConv4d
from voxax.nn.modules.sparse_convs import SparseConvTranspose as SparseConvTranspose
from voxax.nn.modules.sparse_convs import SparseConvTranspose1d as SparseConvTranspose1d
from voxax.nn.modules.sparse_convs import SparseConvTranspose2d as SparseConvTranspose2d
from voxax.nn.modules.sparse_convs import SparseConvTranspose3d as SparseConvTranspose3d
from voxax.nn.modules.sparse_convs import SparseConvTranspose4d as SparseConvTranspose4d
from voxax.nn.modules.sparse_convs import SpatiallySparseConv as SpatiallySparseConv
from voxax.nn.modules.sparse_convs import (
    SpatiallySparseDepthwiseConv as SpatiallySparseDepthwiseConv,
)
from voxax.nn.modules.sparse_convs import SubMConv as SubMConv
from voxax.nn.modules.sparse_convs import SubMConv1d as SubMConv1d
from voxax.nn.modules.sparse_convs import SubMConv2d as SubMConv2d
from voxax.nn.modules.sparse_convs import SubMConv3d as SubMConv3d
from voxax.nn.modules.sparse_convs import SubMConv4d as SubMConv4d
from voxax.nn.modules.voxelization import Devoxelize as Devoxelize
from voxax.nn.modules.voxelization import Splat as Splat
from voxax.nn.modules.voxelization import Voxelize as Voxelize

if not TYPE_CHECKING:  # type checkers know which names exist

    def __getattr__(name: str) -> object:
        raise _removed.missing(__name__, name, _removed.MODULES)
