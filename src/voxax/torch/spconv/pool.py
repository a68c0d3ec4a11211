"""Pooling layers with spconv's names: maximum or mean over windows or over whole scenes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.core import ImplicitGemmIndiceData, IndiceData, SparseConvTensor, expand_nd
from voxax.torch.spconv.functional import AveragePool, MaxPool
from voxax.torch.spconv.modules import SparseModule
from voxax.torch.spconv.ops import relation
from voxax.torch.spconv.window import Size, Window

__all__ = ["ImplicitGemmIndiceData", "IndiceData", "expand_nd"]


class _Pool(Window):
    """Base of the poolings over windows of voxels; other arguments are as in convolutions.

    Args:
      stride: stride of the windows; None takes the kernel size.
      subm: whether outputs are at the input's voxels. spconv ignores True on CPUs and for
        ``ConvAlgo.Native``.
      indice_key: name of the stored kernel map, which an inverse convolution can use.
    """

    FUNCTION: ClassVar[type[torch.autograd.Function]]
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
        sizes = kernel_size, kernel_size if stride is None else stride, padding, dilation
        counts = record_voxel_count and not subm
        super().__init__(ndim, sizes, subm, indice_key, algo, self.MOST_TAPS, counts, name)
        self.record_voxel_count = record_voxel_count

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows for the arguments, as in spconv."""
        names = ("kernel_size", "stride", "padding", "dilation", "algo")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)

    @uncompiled
    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        """Return a tensor with the pooled features at the output voxels.

        Wrong dtypes or indices, and an ``indice_key`` already in use, raise :class:`SpconvError`.
        """
        record = self._begin(input, type(self).__name__)
        if self.indice_key is not None and self.indice_key in input.indice_dict:
            raise ArgumentError(
                f"indice_key {self.indice_key!r} already exists in this sparse tensor: poolings "
                "have keys of their own"
            )
        sites, sizes = input.sites(), (self.kernel_size, self.stride, self.padding, self.dilation)
        kernel_map, out = relation(sites, sizes, self.subm)
        record.found()
        made = input.on(out, self.FUNCTION.apply(input.features, kernel_map))
        self._count(len(out.indices))
        made.indice_dict = self._left(input, kernel_map, sites, out)
        record.done(made)
        return made


class SparseMaxPool(_Pool):
    """Max pooling over the voxels in each window; results below 0 are replaced by 0.

    Every feature that equals the result of its window gets the window's full gradient. Arguments
    are as in :class:`voxax.torch.spconv.conv.SparseConvolution`, but None as ``stride`` means the
    kernel size.
    """

    FUNCTION, MOST_TAPS = MaxPool, 128


class SparseAvgPool(_Pool):
    """Mean pooling over the existing voxels in each window.

    The gradient is multiplied by the number of these voxels instead of divided by it, as in spconv.
    Arguments are as in :class:`SparseMaxPool`.

    Raises:
      SpconvError: the kernel has more than 32 taps.
    """

    FUNCTION, MOST_TAPS = AveragePool, 32

    def __init__(self, ndim: int, kernel_size: Size = 3, *args: Any, **kwargs: Any) -> None:
        super().__init__(ndim, kernel_size, *args, **kwargs)
        if math.prod(self.kernel_size) > self.MOST_TAPS:
            raise ArgumentError(f"kernel_size {self.kernel_size} of a mean: at most 32 taps")
        self.algo = ConvAlgo.MaskImplicitGemm


class _OfDimension(_Pool):
    """Base of the poolings with a fixed number of spatial axes and spconv's constructor."""

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
        sizes = kernel_size, stride, padding, dilation
        super().__init__(self.NDIM, *sizes, indice_key, False, algo, record_voxel_count, name)


class SparseMaxPool1d(_OfDimension, SparseMaxPool, ndim=1):
    """Max pooling over 1-D windows of voxels; see :class:`SparseMaxPool`."""


class SparseMaxPool2d(_OfDimension, SparseMaxPool, ndim=2):
    """Max pooling over 2-D windows of voxels; see :class:`SparseMaxPool`."""


class SparseMaxPool3d(_OfDimension, SparseMaxPool, ndim=3):
    """Max pooling over 3-D windows of voxels; see :class:`SparseMaxPool`."""


class SparseMaxPool4d(_OfDimension, SparseMaxPool, ndim=4):
    """Max pooling over 4-D windows of voxels; see :class:`SparseMaxPool`."""


class SparseAvgPool1d(_OfDimension, SparseAvgPool, ndim=1):
    """Mean pooling over 1-D windows of voxels; see :class:`SparseAvgPool`."""


class SparseAvgPool2d(_OfDimension, SparseAvgPool, ndim=2):
    """Mean pooling over 2-D windows of voxels; see :class:`SparseAvgPool`."""


class SparseAvgPool3d(_OfDimension, SparseAvgPool, ndim=3):
    """Mean pooling over 3-D windows of voxels; see :class:`SparseAvgPool`."""


class SparseGlobalMaxOrAvgPool(SparseModule):
    """Base of poolings over all voxels of each scene; a scene without voxels gives zeros.

    ``is_mean`` chooses the mean of the first channel instead of the maximum of all channels.
    """

    def __init__(self, is_mean: bool, name: str | None = None) -> None:
        super().__init__(name=name)
        self.is_mean = is_mean

    def forward(self, input: SparseConvTensor) -> Tensor:
        """Return the maxima ``[batch_size, C]``, or the first channel's means ``[batch_size]``.

        The means are returned if ``is_mean``.
        """
        input.sites()  # checks the indices
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
    """Max pooling over all voxels of each scene, with the result ``[batch_size, C]``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(False, name)


class SparseGlobalAvgPool(SparseGlobalMaxOrAvgPool):
    """Mean of the first channel over each scene's voxels, ``[batch_size]``, as in spconv."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(True, name)
