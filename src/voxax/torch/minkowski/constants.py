"""MinkowskiEngine's enumerations. The ones that choose a GPU kernel are accepted, but unused."""

from __future__ import annotations

from enum import Enum


class _Number(Enum):
    """Enumeration whose members ``int`` converts."""

    def __int__(self) -> int:
        return self.value

    __index__ = __int__


class RegionType(_Number):
    """Region of a kernel, which defines its taps.

    ``HYPER_CUBE`` has all taps of a box, the first axis running fastest. ``HYPER_CROSS`` has the
    center, then the taps on each axis. ``CUSTOM`` has the taps that the caller gives. ``HYBRID`` is
    a cube over some axes and a cross over the others.
    """

    HYPER_CUBE, HYPER_CROSS, CUSTOM, HYBRID = range(4)


class PoolingMode(_Number):
    """Operation of a pooling. The last word of a global mode chooses a GPU kernel."""

    LOCAL_SUM_POOLING, LOCAL_AVG_POOLING, LOCAL_MAX_POOLING = range(3)
    GLOBAL_SUM_POOLING_DEFAULT, GLOBAL_AVG_POOLING_DEFAULT, GLOBAL_MAX_POOLING_DEFAULT = range(3, 6)
    GLOBAL_SUM_POOLING_KERNEL, GLOBAL_AVG_POOLING_KERNEL, GLOBAL_MAX_POOLING_KERNEL = range(6, 9)
    GLOBAL_SUM_POOLING_PYTORCH_INDEX = 9
    GLOBAL_AVG_POOLING_PYTORCH_INDEX = 10
    GLOBAL_MAX_POOLING_PYTORCH_INDEX = 11


class BroadcastMode(_Number):
    """Operation on a scene's row and the rows of its sites. Spelled as in MinkowskiEngine."""

    ELEMENTWISE_ADDITON, ELEMENTWISE_MULTIPLICATION = range(2)


class ConvolutionMode(_Number):
    """Choice of a GPU kernel; unused."""

    DEFAULT, DIRECT_GEMM, COPY_GEMM = range(3)


class CoordinateMapType(_Number):
    """Device of the coordinates; here it must be the CPU."""

    CPU, CUDA = range(2)


class GPUMemoryAllocatorType(_Number):
    """Choice of an allocator of GPU memory; unused."""

    PYTORCH, CUDA = range(2)


class MinkowskiAlgorithm(_Number):
    """Choice of a GPU algorithm; unused."""

    DEFAULT, MEMORY_EFFICIENT, SPEED_OPTIMIZED = range(3)


class SparseTensorOperationMode(Enum):
    """Choice between a coordinate manager for each tensor, and one manager for all."""

    SEPARATE_COORDINATE_MANAGER, SHARE_COORDINATE_MANAGER = range(2)


class SparseTensorQuantizationMode(Enum):
    """Reduction of the features of several rows that are one site."""

    RANDOM_SUBSAMPLE, UNWEIGHTED_AVERAGE, UNWEIGHTED_SUM = range(3)
    NO_QUANTIZATION, MAX_POOL, SPLAT_LINEAR_INTERPOLATION = range(3, 6)
