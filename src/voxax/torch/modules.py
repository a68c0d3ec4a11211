"""PyTorch modules: convolutions, linear layers, normalization and pooling."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from voxax.geometry import KernelShape
from voxax.nn.arguments import check_channels, check_groups, check_keeps_voxels, own_ndim
from voxax.torch import functional
from voxax.torch.bridge import check_tensor
from voxax.torch.functional import Size, conv_by_text
from voxax.torch.integers import whole, wholes
from voxax.torch.static_text import relation_facts, request_text, spec_text
from voxax.torch.voxels import Voxels
from voxax.tuning import Request


class _Convolution(nn.Module):
    """Base of dense and depthwise convolutions."""

    NDIM: ClassVar[int | None] = None
    weight: nn.Parameter
    bias: nn.Parameter | None
    spec: str
    options: str

    def __init__(self, in_channels: int, ndim: int | None, capacity: int | None) -> None:
        super().__init__()
        self.in_channels = whole("in_channels", in_channels)
        self.capacity = None if capacity is None else whole("capacity", capacity)
        self.ndim = own_ndim(self, None if ndim is None else whole("ndim", ndim))

    def _parameters_of(
        self, shape: tuple[int, ...], fan_in: int, channels: int, bias: bool, dtype: Any
    ) -> None:
        self.weight = nn.Parameter(torch.randn(shape, dtype=dtype) * math.sqrt(2 / fan_in))
        self.bias = nn.Parameter(torch.zeros(channels, dtype=dtype)) if bias else None

    def forward(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        """Convolve; ``out_voxels`` gives the target of a transposed convolution."""
        check_channels(self, self.in_channels, voxels)
        capacity = self.capacity if out_voxels is None else None
        args = (self.weight, self.bias, self.spec, self.options, out_voxels, capacity)
        return conv_by_text(voxels, *args)

    def extra_repr(self) -> str:
        return f"weight {tuple(self.weight.shape)}, bias={self.bias is not None}"


class SpatiallySparseConv(_Convolution):
    """Spatially sparse convolution in any number of dimensions.

    Args:
      in_channels, out_channels: channels.
      kernel_size, stride, dilation: integers, or one per axis.
      groups: channel groups; divides both channel numbers.
      bias: add a bias.
      ndim: spatial axes, 3 unless the class says otherwise.
      transposed: needs ``out_voxels`` when called, unless generative.
      generative: output every site that a tap reaches.
      capacity, fwd_algo, bwd_algo, dgrad_algo, wgrad_algo, precision, kernel_shape,
        spatial_shape: as in :class:`voxax.nn.modules.SpatiallySparseConv`.
      dtype: of the parameters; None is PyTorch's default.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        ndim: int | None = None,
        transposed: bool = False,
        generative: bool = False,
        capacity: int | None = None,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        dgrad_algo: Request = None,
        wgrad_algo: Request = None,
        precision: str | None = None,
        kernel_shape: KernelShape = "box",
        spatial_shape: Size | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, ndim, capacity)
        in_channels, groups = self.in_channels, whole("groups", groups)
        out_channels = whole("out_channels", out_channels)
        check_groups(groups, in_channels, out_channels)
        self.out_channels, self.groups = out_channels, groups
        relation = (kernel_size, stride, dilation, transposed, generative)
        self.spec = spec_text(self.ndim, *relation, kernel_shape, spatial_shape)
        requests = (fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
        self.options = request_text("dense" if groups == 1 else "grouped", precision, *requests)
        taps, c_in = relation_facts(self.spec).num_offsets, in_channels // groups
        shape = (taps, c_in, out_channels)
        if groups > 1:
            shape = (taps, groups, c_in, out_channels // groups)
        self._parameters_of(shape, taps * c_in, out_channels, bias, dtype)


class SpatiallySparseDepthwiseConv(_Convolution):
    """Spatially sparse depthwise convolution: one filter per channel, ``weight [K, C]``.

    Args:
      channels: C.
      kernel_size, stride, dilation, bias, ndim, transposed, capacity, precision, kernel_shape,
        dtype: as in :class:`SpatiallySparseConv`.
      fwd_algo, bwd_algo: depthwise algorithm requests.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        dilation: Size = 1,
        bias: bool = True,
        *,
        ndim: int | None = None,
        transposed: bool = False,
        capacity: int | None = None,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        precision: str | None = None,
        kernel_shape: KernelShape = "box",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, ndim, capacity)
        relation = (kernel_size, stride, dilation, transposed, False)
        self.spec = spec_text(self.ndim, *relation, kernel_shape, None)
        self.options = request_text("depthwise", precision, fwd_algo, bwd_algo)
        taps, channels = relation_facts(self.spec).num_offsets, self.in_channels
        self._parameters_of((taps, channels), taps, channels, bias, dtype)


class SparseConv2d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on two axes; submanifold at stride 1."""

    NDIM = 2


class SparseConv3d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on three axes; submanifold at stride 1.

    Users of spconv: its ``SparseConv3d`` also creates output voxels around the input at stride 1.
    Here that is ``generative=True``.
    """

    NDIM = 3


class SubMConv3d(SparseConv3d):
    """Submanifold convolution on three axes: the output voxels are the input's (stride 1)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        *args: Any,
        **options: Any,
    ) -> None:
        check_keeps_voxels(self, stride, options)
        super().__init__(in_channels, out_channels, kernel_size, 1, *args, **options)


class SparseConvTranspose(SpatiallySparseConv):
    """Transposed convolution, the adjoint of the strided one.

    Called with ``out_voxels`` it returns to them; with ``generative=True`` it creates every site
    that a tap reaches.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 2,
        stride: int | Sequence[int] = 2,
        *args: Any,
        **options: Any,
    ) -> None:
        sizes = (in_channels, out_channels, kernel_size, stride)
        super().__init__(*sizes, *args, transposed=True, **options)


class SparseConvTranspose3d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on three axes."""

    NDIM = 3


class BatchNorm(nn.Module):
    """Batch normalization over the voxels that exist; padding rows have no influence.

    In training the running averages take the biased variance, as those of
    :class:`voxax.nn.modules.BatchNorm`; PyTorch's own take the unbiased one. A batch without voxels
    leaves them.

    Args:
      num_features: channels.
      eps: added to the variance.
      momentum: weight of the new value in the running averages.
      dtype: of the parameters; the averages have it, and at least float32.

    Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_features = whole("num_features", num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_features, dtype=dtype))
        wide = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
        self.register_buffer("running_mean", torch.zeros(num_features, dtype=wide))
        self.register_buffer("running_var", torch.ones(num_features, dtype=wide))
        # Counted for the state dicts of PyTorch's own layers; nothing reads it.
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, voxels: Voxels) -> Voxels:
        check_channels(self, self.num_features, voxels)
        check_tensor(voxels.features, "features")
        valid, dtype = voxels.valid[:, None], voxels.features.dtype
        wide = torch.promote_types(dtype, torch.float32)
        x = torch.where(valid, voxels.features.to(wide), 0)
        if self.training:
            number = valid.sum().to(wide)
            mean = x.sum(0) / number.clamp(min=1)
            var = torch.where(valid, x - mean, 0).square().sum(0) / number.clamp(min=1)
            self._update(mean.detach(), var.detach(), number)
        else:
            mean, var = self.running_mean.to(wide), self.running_var.to(wide)
        factor = torch.rsqrt(var + self.eps) * self.weight.to(wide)
        y = (x - mean) * factor + self.bias.to(wide)
        return voxels.on(voxels.geometry, torch.where(valid, y.to(dtype), 0))

    def _update(self, mean: torch.Tensor, var: torch.Tensor, number: torch.Tensor) -> None:
        share = torch.where(number > 0, self.momentum, 0.0)
        for average, value in ((self.running_mean, mean), (self.running_var, var)):
            average.add_((share * (value - average)).to(average.dtype))
        self.num_batches_tracked.add_(1)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class Linear(nn.Linear):
    """A linear layer on every voxel's features; ``weight [out, in]`` as PyTorch's."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = whole("in_channels", in_channels), whole("out_channels", out_channels)
        super().__init__(*sizes, bias, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw normal weights with variance ``2 / in_channels``, and no bias, as in JAX."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, voxels: Voxels) -> Voxels:  # type: ignore[override]
        check_channels(self, self.in_features, voxels)
        check_tensor(voxels.features, "features")
        return voxels.map(super().forward)


class ReLU(nn.Module):
    """``max(x, 0)``."""

    def forward(self, voxels: Voxels) -> Voxels:
        return voxels.map(torch.relu)


class Sequential(nn.Module):
    """Apply modules one after the other; the counterpart of ``voxax.nn.modules.Sequential``."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, voxels: Voxels) -> Voxels:
        for layer in self.layers:
            voxels = layer(voxels)
        return voxels


class _Pool(nn.Module):
    """Pooling over the voxels under a kernel.

    Args:
      kernel_size, stride, dilation, capacity: as in :func:`voxax.torch.sum_pool`.
    """

    FUNCTION: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Size = 2,
        stride: Size | None = None,
        dilation: Size = 1,
        *,
        capacity: int | None = None,
    ) -> None:
        super().__init__()
        step = None if stride is None else wholes("stride", stride)
        self.window = (wholes("kernel_size", kernel_size), step, wholes("dilation", dilation))
        self.capacity = None if capacity is None else whole("capacity", capacity)

    def forward(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        capacity = self.capacity if out_voxels is None else None
        options = {"out_voxels": out_voxels, "capacity": capacity}
        return type(self).FUNCTION(voxels, *self.window, **options)


class SumPool(_Pool):
    """:func:`voxax.torch.sum_pool`."""

    FUNCTION = staticmethod(functional.sum_pool)


class MeanPool(_Pool):
    """:func:`voxax.torch.mean_pool`."""

    FUNCTION = staticmethod(functional.mean_pool)


class MaxPool(_Pool):
    """:func:`voxax.torch.max_pool`."""

    FUNCTION = staticmethod(functional.max_pool)


class MinPool(_Pool):
    """:func:`voxax.torch.min_pool`."""

    FUNCTION = staticmethod(functional.min_pool)


class GlobalPool(nn.Module):
    """One row per scene: ``[batch_size, C]``. See :func:`voxax.torch.global_pool`."""

    def __init__(self, reduction: Literal["mean", "sum", "max"] = "mean") -> None:
        super().__init__()
        self.reduction: Literal["mean", "sum", "max"] = reduction

    def forward(self, voxels: Voxels) -> torch.Tensor:
        return functional.global_pool(voxels, self.reduction)
