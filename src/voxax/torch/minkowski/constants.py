"""MinkowskiEngine's enumerations. Those that choose among GPU kernels are accepted, and unused."""

from __future__ import annotations

from enum import Enum


class _Number(Enum):
    """An enumeration whose members ``int`` takes."""

    def __int__(self) -> int:
        return self.value

    __index__ = __int__


class RegionType(_Number):
    """The taps of a kernel.

    ``HYPER_CUBE`` has all of a box, the first axis running fastest; ``HYPER_CROSS`` the center,
    then those on each axis; ``CUSTOM`` those given; ``HYBRID`` a cube over some axes and a cross
    over the others.
    """

    HYPER_CUBE, HYPER_CROSS, CUSTOM, HYBRID = range(4)


class PoolingMode(_Number):
    """What a pooling computes. The last word of a global mode chooses a GPU kernel."""

    LOCAL_SUM_POOLING, LOCAL_AVG_POOLING, LOCAL_MAX_POOLING = range(3)
    GLOBAL_SUM_POOLING_DEFAULT, GLOBAL_AVG_POOLING_DEFAULT, GLOBAL_MAX_POOLING_DEFAULT = range(3, 6)
    GLOBAL_SUM_POOLING_KERNEL, GLOBAL_AVG_POOLING_KERNEL, GLOBAL_MAX_POOLING_KERNEL = range(6, 9)
    GLOBAL_SUM_POOLING_PYTORCH_INDEX = 9
    GLOBAL_AVG_POOLING_PYTORCH_INDEX = 10
    GLOBAL_MAX_POOLING_PYTORCH_INDEX = 11


class BroadcastMode(_Number):
    """How a scene's row and the rows in it are combined. Spelled as in MinkowskiEngine."""

    ELEMENTWISE_ADDITON, ELEMENTWISE_MULTIPLICATION = range(2)


class ConvolutionMode(_Number):
    """Chooses a GPU kernel."""

    DEFAULT, DIRECT_GEMM, COPY_GEMM = range(3)


class CoordinateMapType(_Number):
    """Where coordinates lie: here, on the CPU."""

    CPU, CUDA = range(2)


class GPUMemoryAllocatorType(_Number):
    """Chooses an allocator of GPU memory."""

    PYTORCH, CUDA = range(2)


class MinkowskiAlgorithm(_Number):
    """Chooses a GPU algorithm."""

    DEFAULT, MEMORY_EFFICIENT, SPEED_OPTIMIZED = range(3)


class SparseTensorOperationMode(Enum):
    """Whether tensors get managers of their own, or all share one."""

    SEPARATE_COORDINATE_MANAGER, SHARE_COORDINATE_MANAGER = range(2)


class SparseTensorQuantizationMode(Enum):
    """Which features remain where several rows are one site."""

    RANDOM_SUBSAMPLE, UNWEIGHTED_AVERAGE, UNWEIGHTED_SUM = range(3)
    NO_QUANTIZATION, MAX_POOL, SPLAT_LINEAR_INTERPOLATION = range(3, 6)
