"""Define the names of MinkowskiEngine's C++ module ``MinkowskiEngineBackend._C`` that code uses."""

from voxax.torch.minkowski.constants import BroadcastMode as BroadcastMode
from voxax.torch.minkowski.constants import ConvolutionMode as ConvolutionMode
from voxax.torch.minkowski.constants import CoordinateMapType as CoordinateMapType
from voxax.torch.minkowski.constants import GPUMemoryAllocatorType as GPUMemoryAllocatorType
from voxax.torch.minkowski.constants import MinkowskiAlgorithm as MinkowskiAlgorithm
from voxax.torch.minkowski.constants import PoolingMode as PoolingMode
from voxax.torch.minkowski.constants import RegionType as RegionType
from voxax.torch.minkowski.diagnostics import cuda_version as cuda_version
from voxax.torch.minkowski.diagnostics import cudart_version as cudart_version
from voxax.torch.minkowski.diagnostics import get_gpu_memory_info as get_gpu_memory_info
from voxax.torch.minkowski.diagnostics import is_cuda_available as is_cuda_available
from voxax.torch.minkowski.manager import CoordinateMapKey as CoordinateMapKey
from voxax.torch.minkowski.utils.quantization import quantize as quantize_np  # noqa: F401
from voxax.torch.minkowski.utils.quantization import quantize as quantize_th  # noqa: F401
