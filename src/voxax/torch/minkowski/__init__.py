"""Run code for MinkowskiEngine on the CPU, with ``import voxax.torch.minkowski as ME``.

This line replaces ``import MinkowskiEngine as ME``. The layers call voxax's native kernels
directly, so nothing is compiled when the number of sites (voxels) changes.
"""

from voxax.torch.minkowski import functional as MinkowskiFunctional  # noqa: F401
from voxax.torch.minkowski import modules as modules
from voxax.torch.minkowski import ops as MinkowskiOps  # noqa: F401
from voxax.torch.minkowski import utils as utils
from voxax.torch.minkowski.aliases import install as install
from voxax.torch.minkowski.aliases import uninstall as uninstall
from voxax.torch.minkowski.arguments import convert_to_int_tensor as convert_to_int_tensor
from voxax.torch.minkowski.broadcast import MinkowskiBroadcast as MinkowskiBroadcast
from voxax.torch.minkowski.broadcast import MinkowskiBroadcastAddition as MinkowskiBroadcastAddition
from voxax.torch.minkowski.broadcast import (
    MinkowskiBroadcastConcatenation as MinkowskiBroadcastConcatenation,
)
from voxax.torch.minkowski.broadcast import MinkowskiBroadcastFunction as MinkowskiBroadcastFunction
from voxax.torch.minkowski.broadcast import (
    MinkowskiBroadcastMultiplication as MinkowskiBroadcastMultiplication,
)
from voxax.torch.minkowski.constants import BroadcastMode as BroadcastMode
from voxax.torch.minkowski.constants import ConvolutionMode as ConvolutionMode
from voxax.torch.minkowski.constants import CoordinateMapType as CoordinateMapType
from voxax.torch.minkowski.constants import GPUMemoryAllocatorType as GPUMemoryAllocatorType
from voxax.torch.minkowski.constants import MinkowskiAlgorithm as MinkowskiAlgorithm
from voxax.torch.minkowski.constants import PoolingMode as PoolingMode
from voxax.torch.minkowski.constants import RegionType as RegionType
from voxax.torch.minkowski.constants import SparseTensorOperationMode as SparseTensorOperationMode
from voxax.torch.minkowski.constants import (
    SparseTensorQuantizationMode as SparseTensorQuantizationMode,
)
from voxax.torch.minkowski.convolution import (
    MinkowskiChannelwiseConvolution as MinkowskiChannelwiseConvolution,
)
from voxax.torch.minkowski.convolution import MinkowskiConvolution as MinkowskiConvolution
from voxax.torch.minkowski.convolution import (
    MinkowskiConvolutionFunction as MinkowskiConvolutionFunction,
)
from voxax.torch.minkowski.convolution import (
    MinkowskiConvolutionTranspose as MinkowskiConvolutionTranspose,
)
from voxax.torch.minkowski.convolution import (
    MinkowskiConvolutionTransposeFunction as MinkowskiConvolutionTransposeFunction,
)
from voxax.torch.minkowski.convolution import (
    MinkowskiGenerativeConvolutionTranspose as MinkowskiGenerativeConvolutionTranspose,
)
from voxax.torch.minkowski.diagnostics import cuda_version as cuda_version
from voxax.torch.minkowski.diagnostics import cudart_version as cudart_version
from voxax.torch.minkowski.diagnostics import get_gpu_memory_info as get_gpu_memory_info
from voxax.torch.minkowski.diagnostics import is_cuda_available as is_cuda_available
from voxax.torch.minkowski.diagnostics import print_diagnostics as print_diagnostics
from voxax.torch.minkowski.kernel_generator import KernelGenerator as KernelGenerator
from voxax.torch.minkowski.kernel_generator import KernelRegion as KernelRegion
from voxax.torch.minkowski.kernel_generator import convert_region_type as convert_region_type
from voxax.torch.minkowski.kernel_generator import get_kernel_volume as get_kernel_volume
from voxax.torch.minkowski.manager import CoordinateManager as CoordinateManager
from voxax.torch.minkowski.manager import CoordinateMapKey as CoordinateMapKey
from voxax.torch.minkowski.manager import CoordsManager as CoordsManager
from voxax.torch.minkowski.manager import (
    clear_global_coordinate_manager as clear_global_coordinate_manager,
)
from voxax.torch.minkowski.manager import global_coordinate_manager as global_coordinate_manager
from voxax.torch.minkowski.manager import (
    set_global_coordinate_manager as set_global_coordinate_manager,
)
from voxax.torch.minkowski.manager import set_gpu_allocator as set_gpu_allocator
from voxax.torch.minkowski.manager import set_memory_manager_backend as set_memory_manager_backend
from voxax.torch.minkowski.manager import (
    set_sparse_tensor_operation_mode as set_sparse_tensor_operation_mode,
)
from voxax.torch.minkowski.manager import (
    sparse_tensor_operation_mode as sparse_tensor_operation_mode,
)
from voxax.torch.minkowski.module import MinkowskiModuleBase as MinkowskiModuleBase
from voxax.torch.minkowski.module import MinkowskiNetwork as MinkowskiNetwork
from voxax.torch.minkowski.nonlinearity import LAYERS as _LAYERS
from voxax.torch.minkowski.nonlinearity import MinkowskiSinusoidal as MinkowskiSinusoidal
from voxax.torch.minkowski.normalization import MinkowskiBatchNorm as MinkowskiBatchNorm
from voxax.torch.minkowski.normalization import MinkowskiInstanceNorm as MinkowskiInstanceNorm
from voxax.torch.minkowski.normalization import (
    MinkowskiInstanceNormFunction as MinkowskiInstanceNormFunction,
)
from voxax.torch.minkowski.normalization import (
    MinkowskiStableInstanceNorm as MinkowskiStableInstanceNorm,
)
from voxax.torch.minkowski.normalization import MinkowskiSyncBatchNorm as MinkowskiSyncBatchNorm
from voxax.torch.minkowski.ops import MinkowskiLinear as MinkowskiLinear
from voxax.torch.minkowski.ops import MinkowskiStackCat as MinkowskiStackCat
from voxax.torch.minkowski.ops import MinkowskiStackMean as MinkowskiStackMean
from voxax.torch.minkowski.ops import MinkowskiStackSum as MinkowskiStackSum
from voxax.torch.minkowski.ops import MinkowskiStackVar as MinkowskiStackVar
from voxax.torch.minkowski.ops import MinkowskiToDenseTensor as MinkowskiToDenseTensor
from voxax.torch.minkowski.ops import MinkowskiToFeature as MinkowskiToFeature
from voxax.torch.minkowski.ops import MinkowskiToSparseTensor as MinkowskiToSparseTensor
from voxax.torch.minkowski.ops import _sum as sum  # noqa: F401
from voxax.torch.minkowski.ops import cat as cat
from voxax.torch.minkowski.ops import dense_coordinates as dense_coordinates
from voxax.torch.minkowski.ops import mean as mean
from voxax.torch.minkowski.ops import to_sparse as to_sparse
from voxax.torch.minkowski.ops import to_sparse_all as to_sparse_all
from voxax.torch.minkowski.ops import var as var
from voxax.torch.minkowski.pooling import MinkowskiAvgPooling as MinkowskiAvgPooling
from voxax.torch.minkowski.pooling import (
    MinkowskiDirectMaxPoolingFunction as MinkowskiDirectMaxPoolingFunction,
)
from voxax.torch.minkowski.pooling import MinkowskiGlobalAvgPooling as MinkowskiGlobalAvgPooling
from voxax.torch.minkowski.pooling import MinkowskiGlobalMaxPooling as MinkowskiGlobalMaxPooling
from voxax.torch.minkowski.pooling import MinkowskiGlobalPooling as MinkowskiGlobalPooling
from voxax.torch.minkowski.pooling import (
    MinkowskiGlobalPoolingFunction as MinkowskiGlobalPoolingFunction,
)
from voxax.torch.minkowski.pooling import MinkowskiGlobalSumPooling as MinkowskiGlobalSumPooling
from voxax.torch.minkowski.pooling import (
    MinkowskiLocalPoolingFunction as MinkowskiLocalPoolingFunction,
)
from voxax.torch.minkowski.pooling import (
    MinkowskiLocalPoolingTransposeFunction as MinkowskiLocalPoolingTransposeFunction,
)
from voxax.torch.minkowski.pooling import MinkowskiMaxPooling as MinkowskiMaxPooling
from voxax.torch.minkowski.pooling import MinkowskiPoolingTranspose as MinkowskiPoolingTranspose
from voxax.torch.minkowski.pooling import MinkowskiSumPooling as MinkowskiSumPooling
from voxax.torch.minkowski.site_sets import MinkowskiPruning as MinkowskiPruning
from voxax.torch.minkowski.site_sets import MinkowskiPruningFunction as MinkowskiPruningFunction
from voxax.torch.minkowski.site_sets import MinkowskiUnion as MinkowskiUnion
from voxax.torch.minkowski.site_sets import MinkowskiUnionFunction as MinkowskiUnionFunction
from voxax.torch.minkowski.sparse_matrix import MinkowskiInterpolation as MinkowskiInterpolation
from voxax.torch.minkowski.sparse_matrix import (
    MinkowskiInterpolationFunction as MinkowskiInterpolationFunction,
)
from voxax.torch.minkowski.sparse_matrix import (
    MinkowskiSPMMAverageFunction as MinkowskiSPMMAverageFunction,
)
from voxax.torch.minkowski.sparse_matrix import MinkowskiSPMMFunction as MinkowskiSPMMFunction
from voxax.torch.minkowski.sparse_matrix import spmm as spmm
from voxax.torch.minkowski.sparse_tensor import SparseTensor as SparseTensor
from voxax.torch.minkowski.tensor_field import TensorField as TensorField

globals().update(_LAYERS)  # MinkowskiReLU, MinkowskiDropout, ...

__version__ = "0.5.4"
"""The version of MinkowskiEngine that this package follows."""
