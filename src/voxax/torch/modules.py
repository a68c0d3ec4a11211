"""Modules that see each voxel alone, normalisation, and pooling."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, and not there where types are checked.

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from voxax.errors import InputError
from voxax.torch import functional
from voxax.torch.functional import Size
from voxax.torch.voxels import Voxels


class BatchNorm(nn.Module):
    """Batch normalisation over the voxels that exist; padding rows have no influence.

    In training the running averages take the biased variance, as those of
    :class:`voxax.nn.modules.BatchNorm`; PyTorch's own take the unbiased one. A batch without voxels
    leaves them.

    Args:
      num_features: channels.
      eps: added to the variance.
      momentum: weight of the new value in the running averages.
      dtype: of parameters and averages.

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
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(num_features, dtype=dtype))
        self.register_buffer("running_mean", torch.zeros(num_features, dtype=dtype))
        self.register_buffer("running_var", torch.ones(num_features, dtype=dtype))
        # Counted for the state dicts of PyTorch's own layers; nothing reads it.
        self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long))

    def forward(self, voxels: Voxels) -> Voxels:
        if voxels.num_channels != self.num_features:
            raise InputError(
                f"BatchNorm expects {self.num_features} channels, the voxels have "
                f"{voxels.num_channels}"
            )
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
        super().__init__(in_channels, out_channels, bias, dtype=dtype)

    def reset_parameters(self) -> None:
        """Normal with variance ``2 / in_channels``, and no bias, as in JAX."""
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.in_features))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, voxels: Voxels) -> Voxels:  # type: ignore[override]
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
        self.window = (kernel_size, stride, dilation)
        self.capacity = capacity

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
