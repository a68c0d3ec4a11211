"""Pooling layers: over windows, over whole scenes, and transposed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from voxax.torch.core import pooling
from voxax.torch.core.errors import ArgumentError, check_features
from voxax.torch.core.kernel_map import KernelMap
from voxax.torch.minkowski.constants import PoolingMode
from voxax.torch.minkowski.kernel_generator import KernelGenerator, generator_of
from voxax.torch.minkowski.manager import Key, given, key_or_new
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.reduction import grouped
from voxax.torch.minkowski.sparse_tensor import SparseTensor, check_sparse, target_key


def _pooled(features: Tensor, kernel_map: KernelMap, mode: PoolingMode) -> Tensor:
    check_features(features, kernel_map.in_rows)
    kinds = {"SUM": pooling.total, "AVG": pooling.mean, "MAX": pooling.extreme}
    return kinds[mode.name.split("_")[1]](features, kernel_map)


class MinkowskiLocalPoolingFunction:
    """Pooling over windows, with the interface of an autograd function."""

    _TRANSPOSED = False

    @classmethod
    def apply(
        cls,
        rows: Tensor,
        mode: Any,
        generator: Any,
        key: Key,
        out_key: Any = None,
        manager: Any = None,
    ) -> Tensor:
        """Pool ``rows [N, C]`` at the sites of ``key`` to ``[M, C]`` at the sites of ``out_key``.

        ``mode`` chooses sum, mean or maximum; the transposed class always sums. ``generator``
        describes the windows. If ``out_key`` is not set, it is set to the sites that the stride
        gives.
        """
        keys, back = (key, key_or_new(out_key, key)), cls._TRANSPOSED
        expand = back and generator.expand_coordinates
        related = given(manager).relation(*keys, generator.kernel(), back, True, expand)
        return _pooled(rows, related, PoolingMode.LOCAL_SUM_POOLING if back else mode)


class MinkowskiLocalPoolingTransposeFunction(MinkowskiLocalPoolingFunction):
    """Transposed pooling over windows, with the interface of an autograd function."""

    _TRANSPOSED = True


class MinkowskiPoolingBase(MinkowskiModuleBase):
    """Base of the poolings over windows of sites.

    If kernel size and stride are equal, a window has all input sites inside the coarser output
    site. Otherwise the window is around the output site, as in a convolution. An empty window
    gives 0.

    Args:
      kernel_size, stride, dilation: one integer for all axes, or one per axis.
      kernel_generator: sizes and shape of the kernel, in place of the three sizes.
      is_transpose: whether to pool from coarse sites to fine sites.
      pooling_mode: local sum, average or maximum.
      dimension: number of spatial axes.

    Raises:
      ArgumentError: the dimension is missing, or a size is below 1.
    """

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None,
        is_transpose: bool = False,
        pooling_mode: PoolingMode = PoolingMode.LOCAL_AVG_POOLING,
        dimension: Any = -1,
    ) -> None:
        super().__init__()
        sizes = kernel_size, stride, dilation
        self.kernel_generator = generator_of(kernel_generator, *sizes, dimension)
        self.dimension = dimension
        self.is_transpose, self.pooling_mode = is_transpose, pooling_mode
        transposed = MinkowskiLocalPoolingTransposeFunction
        self.pooling = transposed() if is_transpose else MinkowskiLocalPoolingFunction()

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Return the pooled tensor at the sites ``coordinates``.

        They are a key, a sparse tensor or ``int32[M, 1 + D]``. None takes the sites that the stride
        gives.
        """
        check_sparse(input, self.dimension)
        key, manager = target_key(input, coordinates), input.coordinate_manager
        options = self.pooling_mode, self.kernel_generator, input.coordinate_map_key, key, manager
        out = self.pooling.apply(input.F, *options)
        return SparseTensor(out, coordinate_map_key=key, coordinate_manager=manager)

    def __repr__(self) -> str:
        generator = self.kernel_generator
        size, stride = generator.kernel_size, generator.kernel_stride
        sizes = f"kernel_size={size}, stride={stride}, dilation={generator.kernel_dilation}"
        return f"{type(self).__name__}({sizes})"


class _Window(MinkowskiPoolingBase):
    _MODE = PoolingMode.LOCAL_AVG_POOLING

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None,
        dimension: int | None = None,
    ) -> None:
        sizes = kernel_size, stride, dilation
        super().__init__(*sizes, kernel_generator, False, self._MODE, dimension)


class MinkowskiAvgPooling(_Window):
    """Mean of the features in each window of sites; see :class:`MinkowskiPoolingBase`."""


class MinkowskiSumPooling(_Window):
    """Sum of the features in each window of sites; see :class:`MinkowskiPoolingBase`."""

    _MODE = PoolingMode.LOCAL_SUM_POOLING


class MinkowskiMaxPooling(_Window):
    """Maximum of the features in each window of sites; see :class:`MinkowskiPoolingBase`."""

    _MODE = PoolingMode.LOCAL_MAX_POOLING


class MinkowskiPoolingTranspose(MinkowskiPoolingBase):
    """Layer that gives each fine site the sum of the coarse sites whose windows contain it.

    ``expand_coordinates`` decides whether outputs are at all fine sites in the windows. It is
    ignored if ``kernel_generator`` is given. Other arguments are as in
    :class:`MinkowskiPoolingBase`.
    """

    def __init__(
        self,
        kernel_size: Any,
        stride: Any,
        dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        dimension: int | None = None,
    ) -> None:
        sizes = kernel_size, stride, dilation
        super().__init__(*sizes, kernel_generator, True, dimension=dimension)
        if kernel_generator is None:
            self.kernel_generator.expand_coordinates = expand_coordinates


class MinkowskiGlobalPoolingFunction:
    """Pooling over whole scenes, with the interface of an autograd function."""

    @staticmethod
    def apply(
        rows: Tensor, mode: Any, key: Key, out_key: Key | None = None, manager: Any = None
    ) -> Tensor:
        """Pool ``rows [N, C]`` at the sites or points of ``key`` to one row per scene, ``[B, C]``.

        ``mode`` chooses sum, mean or maximum. If ``out_key`` is not set, it is set to the scenes.
        """
        places, origin = given(manager).scene_rows(key), given(manager).origin()
        if out_key is not None and not out_key.is_key_set():
            out_key.set_key(origin.get_key())
        return _pooled(rows, grouped(places, manager.size(origin)), mode)


class MinkowskiGlobalPooling(MinkowskiModuleBase):
    """Pooling of each scene into one row, in the order of the batch index.

    A scene without sites gives zeros.

    Args:
      mode: a global sum, average or maximum; None takes the mode of the class, here the average.
    """

    _MODE = PoolingMode.GLOBAL_AVG_POOLING_PYTORCH_INDEX

    def __init__(self, mode: PoolingMode | None = None) -> None:
        super().__init__()
        mode = self._MODE if mode is None else mode
        if not isinstance(mode, PoolingMode) or not mode.name.startswith("GLOBAL"):
            raise ArgumentError(f"mode={mode!r}: expected a global PoolingMode")
        self.pooling_mode, self.pooling = mode, MinkowskiGlobalPoolingFunction()

    def forward(self, input: Any, coordinates: Any = None) -> SparseTensor:
        """Return a sparse tensor with one row per scene of a sparse tensor or a field.

        The rows are at the sites ``coordinates``: a key, a sparse tensor or ``int32[B, 1 + D]``.
        None makes one site at 0 for each scene, and so does a field, for which ``coordinates`` are
        ignored.
        """
        key, manager = Key(input.D + 1), input.coordinate_manager
        if isinstance(input, SparseTensor):
            key = target_key(input, coordinates)
        out = self.pooling.apply(input.F, self.pooling_mode, input.coordinate_key, key, manager)
        return SparseTensor(out, coordinate_map_key=key, coordinate_manager=manager)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mode={self.pooling_mode})"


class MinkowskiGlobalSumPooling(MinkowskiGlobalPooling):
    """Layer that sums the features over the sites of each scene."""

    _MODE = PoolingMode.GLOBAL_SUM_POOLING_PYTORCH_INDEX


class MinkowskiGlobalAvgPooling(MinkowskiGlobalPooling):
    """Layer that averages the features over the sites of each scene."""


class MinkowskiGlobalMaxPooling(MinkowskiGlobalPooling):
    """Layer that takes the maximum of each channel over the sites of each scene."""

    _MODE = PoolingMode.GLOBAL_MAX_POOLING_PYTORCH_INDEX


class MinkowskiDirectMaxPoolingFunction:
    """Max pooling along given pairs of rows, with the interface of an autograd function."""

    @staticmethod
    def apply(
        in_map: Tensor, out_map: Tensor, rows: Tensor, number: int, is_sorted: bool = False
    ) -> Tensor:
        """Return the maximum of the input rows of each output row, ``[number, C]``.

        ``in_map`` and ``out_map``, both ``int[n]``, are n pairs of an input row in ``rows [N, C]``
        and an output row. An output row without pairs gets 0. ``is_sorted`` is ignored.
        """
        return pooling.extreme(rows[in_map.long()], grouped(out_map, number))
