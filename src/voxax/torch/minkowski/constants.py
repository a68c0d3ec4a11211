"""Define MinkowskiEngine's enumerations; those that choose a GPU kernel have no effect here."""

from __future__ import annotations

from enum import Enum


class _Number(Enum):
    """Enumeration whose members can be converted to integers by ``int``."""

    def __int__(self) -> int:
        return self.value

    __index__ = __int__


class RegionType(_Number):
    """Shape of a kernel, which defines its taps.

    ``HYPER_CUBE`` has all taps of a box; the first axis varies fastest. ``HYPER_CROSS`` has the
    center, then the taps on each axis. ``CUSTOM`` has the taps that the caller gives. ``HYBRID`` is
    a cube over some axes and a cross over the other axes.
    """

    HYPER_CUBE, HYPER_CROSS, CUSTOM, HYBRID = range(4)


class PoolingMode(_Number):
    """Operation of a pooling: sum, mean or maximum, over windows (local) or whole scenes (global).

    The part after ``POOLING`` in the names of global modes has no effect here.
    """

    LOCAL_SUM_POOLING, LOCAL_AVG_POOLING, LOCAL_MAX_POOLING = range(3)
    GLOBAL_SUM_POOLING_DEFAULT, GLOBAL_AVG_POOLING_DEFAULT, GLOBAL_MAX_POOLING_DEFAULT = range(3, 6)
    GLOBAL_SUM_POOLING_KERNEL, GLOBAL_AVG_POOLING_KERNEL, GLOBAL_MAX_POOLING_KERNEL = range(6, 9)
    GLOBAL_SUM_POOLING_PYTORCH_INDEX = 9
    GLOBAL_AVG_POOLING_PYTORCH_INDEX = 10
    GLOBAL_MAX_POOLING_PYTORCH_INDEX = 11


class BroadcastMode(_Number):
    """Operation of a broadcast from scenes to sites, spelled as in MinkowskiEngine."""

    ELEMENTWISE_ADDITON, ELEMENTWISE_MULTIPLICATION = range(2)


class ConvolutionMode(_Number):
    """Choice of a GPU kernel for convolutions, without effect here."""

    DEFAULT, DIRECT_GEMM, COPY_GEMM = range(3)


class CoordinateMapType(_Number):
    """Device of the coordinates, which must be the CPU here."""

    CPU, CUDA = range(2)


class GPUMemoryAllocatorType(_Number):
    """Choice of an allocator of GPU memory, without effect here."""

    PYTORCH, CUDA = range(2)


class MinkowskiAlgorithm(_Number):
    """Choice of a GPU algorithm, without effect here."""

    DEFAULT, MEMORY_EFFICIENT, SPEED_OPTIMIZED = range(3)


class SparseTensorOperationMode(Enum):
    """Choice between one coordinate manager for each new tensor and one manager for all."""

    SEPARATE_COORDINATE_MANAGER, SHARE_COORDINATE_MANAGER = range(2)


class SparseTensorQuantizationMode(Enum):
    """How the features of several rows that have the same site become one row of features."""

    RANDOM_SUBSAMPLE, UNWEIGHTED_AVERAGE, UNWEIGHTED_SUM = range(3)
    NO_QUANTIZATION, MAX_POOL, SPLAT_LINEAR_INTERPOLATION = range(3, 6)
