"""Pooling layers."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.core import SparseConvTensor, expand_nd
from voxax.torch.spconv.errors import SpconvError, check_features, whole
from voxax.torch.spconv.indice_data import ImplicitGemmIndiceData, IndiceData
from voxax.torch.spconv.kernel_map import KernelMap
from voxax.torch.spconv.modules import SparseModule
from voxax.torch.spconv.ops import get_conv_output_size
from voxax.torch.spconv.pooling import AveragePool, MaxPool
from voxax.torch.spconv.recording import VoxelCount, recorded
from voxax.torch.spconv.uncompiled import uncompiled

Size = int | Sequence[int]


class _Pool(VoxelCount, SparseModule):
    """Base of poolings over windows; arguments as those of convolutions.

    Args:
      stride: None is the kernel size.
      subm: keep the voxels. spconv ignores it on CPUs and for ``ConvAlgo.Native``.
      indice_key: of the pairs that an inverse convolution reads.
    """

    # With more taps the pairs are those of ConvAlgo.Native.
    MOST_TAPS: ClassVar[int]

    def __init__(
        self,
        ndim: int,
        kernel_size: Size = 3,
        stride: Size | None = 1,
        padding: Size = 0,
        dilation: Size = 1,
        indice_key: str | None = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.ndim = ndim = whole("ndim", ndim)
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride = list(self.kernel_size) if stride is None else expand_nd(ndim, stride)
        self.padding, self.dilation = expand_nd(ndim, padding), expand_nd(ndim, dilation)
        self.subm, self.indice_key = subm, indice_key
        few = math.prod(self.kernel_size) <= self.MOST_TAPS
        usual = ConvAlgo.MaskImplicitGemm if few else ConvAlgo.Native
        self.algo = usual if algo is None else algo
        self._count_voxels(record_voxel_count, not subm)

    def extra_repr(self) -> str:
        """Return the arguments, as spconv prints them."""
        names = ("kernel_size", "stride", "padding", "dilation", "algo")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    @uncompiled
    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        """Pool.

        Raises:
          SpconvError: wrong dtypes or indices, or an ``indice_key`` that exists.
        """
        if not isinstance(input, SparseConvTensor):
            raise SpconvError(f"{type(input).__name__} where a SparseConvTensor is expected")
        check_features(input.features, input.indices.shape[0])
        if self.indice_key is not None and self.indice_key in input.indice_dict:
            raise SpconvError(
                f"indice_key {self.indice_key!r} already exists in this sparse tensor: poolings "
                "have keys of their own"
            )
        with recorded(self, input, type(self).__name__, self._parameters_for_record) as record:
            sites = input.sites()
            if self.subm:
                kernel_map, out = sites.submanifold(self.kernel_size, self.dilation), sites
            else:
                sizes = self.kernel_size, self.stride, self.padding, self.dilation
                shape = get_conv_output_size(sites.spatial_shape, *sizes)
                kernel_map, out = sites.reached(*sizes, shape)
            record.found()
            made = input.on(out, self._pooled(input.features, kernel_map))
            self._count(len(out.indices))
            if self.indice_key is not None:
                kind = IndiceData if self.algo is ConvAlgo.Native else ImplicitGemmIndiceData
                sizes = self.kernel_size, self.stride, self.dilation, self.padding
                data = kind.of(kernel_map, sites, out, self.subm, self.algo, *sizes)
                made.indice_dict = {**input.indice_dict, self.indice_key: data}
            record.done(made)
        return made

    def _parameters_for_record(self) -> dict[str, Any]:
        names = ("kernel_size", "stride", "padding", "dilation")
        return {name: getattr(self, name) for name in names}

    def _pooled(self, features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        raise NotImplementedError


class SparseMaxPool(_Pool):
    """Largest value under each window, and 0 at least; all that equal it have its gradient."""

    MOST_TAPS = 128

    def _pooled(self, features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        return MaxPool.apply(features, kernel_map)


class SparseAvgPool(_Pool):
    """Mean of the voxels under each window that exist.

    spconv's gradient is multiplied by their number instead of divided by it; so is this one.

    Raises:
      SpconvError: more than 32 taps.
    """

    MOST_TAPS = 32

    def __init__(self, ndim: int, kernel_size: Size = 3, *args: Any, **kwargs: Any) -> None:
        super().__init__(ndim, kernel_size, *args, **kwargs)
        if math.prod(self.kernel_size) > self.MOST_TAPS:
            raise SpconvError(f"kernel_size {self.kernel_size} of a mean: at most 32 taps")
        self.algo = ConvAlgo.MaskImplicitGemm

    def _pooled(self, features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        return AveragePool.apply(features, kernel_map)


class _OfDimension(_Pool):
    """The constructor of the classes of one dimension."""

    NDIM: ClassVar[int]

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        window = self.NDIM, kernel_size, stride, padding, dilation, indice_key
        super().__init__(*window, False, algo, record_voxel_count, name)


class SparseMaxPool1d(_OfDimension, SparseMaxPool):
    """1-D :class:`SparseMaxPool`."""

    NDIM = 1


class SparseMaxPool2d(_OfDimension, SparseMaxPool):
    """2-D :class:`SparseMaxPool`."""

    NDIM = 2


class SparseMaxPool3d(_OfDimension, SparseMaxPool):
    """3-D :class:`SparseMaxPool`."""

    NDIM = 3


class SparseMaxPool4d(_OfDimension, SparseMaxPool):
    """4-D :class:`SparseMaxPool`."""

    NDIM = 4


class SparseAvgPool1d(_OfDimension, SparseAvgPool):
    """1-D :class:`SparseAvgPool`."""

    NDIM = 1


class SparseAvgPool2d(_OfDimension, SparseAvgPool):
    """2-D :class:`SparseAvgPool`."""

    NDIM = 2


class SparseAvgPool3d(_OfDimension, SparseAvgPool):
    """3-D :class:`SparseAvgPool`."""

    NDIM = 3


class SparseGlobalMaxOrAvgPool(SparseModule):
    """Pooling over each scene; a scene without voxels gives zeros.

    Args:
      is_mean: mean instead of maximum.
      name: of the layer.
    """

    def __init__(self, is_mean: bool, name: str | None = None) -> None:
        super().__init__(name=name)
        self.is_mean = is_mean

    def forward(self, input: SparseConvTensor) -> torch.Tensor:
        """Return ``[batch_size, C]``, or of means, as spconv does, the first: ``[batch_size]``."""
        check_features(input.features, input.indices.shape[0])
        input.sites()
        scene, shape = input.indices[:, 0].long(), (input.batch_size, input.features.shape[1])
        if not self.is_mean:
            index = scene[:, None].expand(input.features.shape)
            best = input.features.new_zeros(shape)
            return best.scatter_reduce(0, index, input.features, "amax", include_self=False)
        wide = torch.promote_types(input.features.dtype, torch.float32)
        total = input.features.new_zeros(shape, dtype=wide)
        total = total.index_add(0, scene, input.features.to(wide))
        number = torch.bincount(scene, minlength=input.batch_size).clamp(min=1)
        return (total / number[:, None]).to(input.features.dtype)[:, 0]


class SparseGlobalMaxPool(SparseGlobalMaxOrAvgPool):
    """Largest value of each scene, ``[batch_size, C]``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(False, name)


class SparseGlobalAvgPool(SparseGlobalMaxOrAvgPool):
    """Mean of the first channel of each scene, ``[batch_size]``, as spconv has it."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(True, name)


ALL_POOL_LAYERS = {
    SparseAvgPool,
    SparseAvgPool1d,
    SparseAvgPool2d,
    SparseAvgPool3d,
    SparseMaxPool,
    SparseMaxPool1d,
    SparseMaxPool2d,
    SparseMaxPool3d,
    SparseMaxPool4d,
}
"""All poolings over windows."""
