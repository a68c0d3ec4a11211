"""Layers with TorchSparse's names: convolution, norms, activations, global poolings and crop."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError, whole
from voxax.torch.core.features import Features
from voxax.torch.core.known_calls import is_known, know
from voxax.torch.torchsparse.nn.functional import rows
from voxax.torch.torchsparse.nn.functional.conv import conv3d
from voxax.torch.torchsparse.nn.functional.kmap import Size
from voxax.torch.torchsparse.tensor import SparseTensor, check_tensors, with_features
from voxax.torch.torchsparse.utils.grids import per_axis


class Conv3d(nn.Module):
    """3-D convolution; stride 1 keeps the voxels, a larger stride makes coarser voxels.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size, stride, padding: one integer, or one per axis. An axis with an odd size and
        stride 1 ignores ``padding`` and has half the size, rounded down, as padding.
      dilation: must be 1; TorchSparse accepts other values and ignores them.
      bias: whether to add a bias.
      transposed: whether the layer goes back to finer voxels: the input voxels of an earlier layer
        with the same kernel size and stride.
      generative: whether a transposed layer makes its outputs, at ``voxel * stride + tap offset``.
      config: dictionary of modes, see ``nn.functional.conv_config``; None takes the global one.

    Attributes:
      kernel: ``[K, in_channels, out_channels]`` for K taps; ``[in_channels, out_channels]`` for one
        tap with stride 1. In the order of taps, the first axis varies fastest if K is odd, else
        the last axis.
      bias: ``[out_channels]`` or None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        padding: Size = 0,
        dilation: int = 1,
        bias: bool = False,
        transposed: bool = False,
        generative: bool = False,
        config: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels = whole("in_channels", in_channels)
        self.out_channels = whole("out_channels", out_channels)
        if min(self.in_channels, self.out_channels) < 1:
            raise ArgumentError(f"{in_channels} to {out_channels} channels: expected 1 or more")
        self.kernel_size = per_axis("kernel_size", kernel_size)
        self.stride, self.dilation = per_axis("stride", stride), dilation
        axes = zip(self.kernel_size, self.stride, per_axis("padding", padding, 0), strict=True)
        self.padding = tuple(n // 2 if n % 2 and s == 1 else p for n, s, p in axes)
        self.transposed, self.generative = transposed, generative
        if generative and not transposed:
            raise ArgumentError("generative=True, transposed=False: give transposed=True also")
        self._config = config
        self.kernel_volume = math.prod(self.kernel_size)
        taps = () if self.kernel_volume == math.prod(self.stride) == 1 else (self.kernel_volume,)
        self.kernel = nn.Parameter(torch.zeros(*taps, in_channels, out_channels))
        self.bias: nn.Parameter | None
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows: channels, and arguments that are not defaults."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}" if self.stride != (1, 1, 1) else ""
        text += f", dilation={self.dilation}" if self.dilation != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        text += ", transposed=True" if self.transposed else ""
        return text + (", generative=True" if self.generative else "")

    def reset_parameters(self) -> None:
        """Draw kernel and bias uniformly within ``1 / sqrt(channels * taps)`` of 0, as TorchSparse.

        The channels are those of the output if ``transposed``, else those of the input.
        """
        channels = self.out_channels if self.transposed else self.in_channels
        bound = 1 / math.sqrt(channels * self.kernel_volume)
        with torch.no_grad():
            for parameter in self.parameters():  # the kernel, then the bias
                parameter.uniform_(-bound, bound)

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return the convolution of a sparse tensor."""
        sizes = self.stride, self.padding, self.dilation
        options = self._config, self.transposed, self.generative, self.training
        return conv3d(input, self.kernel, self.kernel_size, self.bias, *sizes, *options)


class _OfFeatures(nn.Module):
    """Mixin that makes a PyTorch module class apply to the features of a sparse tensor."""

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a tensor with the module's result, computed now or when code first reads it."""
        check_tensors(type(self).__name__, input)
        feats = self._waiting(input._features)
        return rows.fapply(input, super().forward) if feats is None else with_features(input, feats)

    def _waiting(self, feats: Features) -> Features | None:
        return None


class BatchNorm(_OfFeatures, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` applied to the features of a sparse tensor."""

    def _waiting(self, feats: Features) -> Features | None:
        return feats.normalized(self)


class InstanceNorm(_OfFeatures, nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d`` applied to features; normalizes each row, as in TorchSparse."""


class ReLU(_OfFeatures, nn.ReLU):
    """``torch.nn.ReLU`` applied to the features of a sparse tensor."""

    def _waiting(self, feats: Features) -> Features | None:
        return feats.rectified(self.inplace) if is_known(self) else None


class LeakyReLU(_OfFeatures, nn.LeakyReLU):
    """``torch.nn.LeakyReLU`` applied to the features of a sparse tensor."""


class SiLU(_OfFeatures, nn.SiLU):
    """``torch.nn.SiLU`` applied to the features of a sparse tensor."""


know(BatchNorm, ReLU)


class GroupNorm(nn.GroupNorm):
    """``torch.nn.GroupNorm`` applied to the voxels of each scene of a sparse tensor."""

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a sparse tensor with the normalized features."""
        out = torch.zeros_like(input.feats)
        for scene in rows.rows_of_scenes(input):
            if len(scene):
                normalized = super().forward(input.feats[scene].T[None])[0].T
                out = out.index_copy(0, scene, normalized.to(out.dtype))
        return with_features(input, out)


class GlobalAvgPool(nn.Module):
    """Layer that averages each channel over the voxels of each scene, ``[B, C]``."""

    forward = staticmethod(rows.global_avg_pool)


class GlobalMaxPool(nn.Module):
    """Layer that returns the maximum of each channel in each scene, ``[B, C]``."""

    forward = staticmethod(rows.global_max_pool)


class SparseCrop(nn.Module):
    """Layer that keeps the voxels with ``coords_min <= (x, y, z) < coords_max``."""

    def __init__(self, coords_min: Any = None, coords_max: Any = None) -> None:
        super().__init__()
        self.coords_min, self.coords_max = coords_min, coords_max

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Return a tensor with only the voxels inside the limits."""
        return rows.spcrop(input, self.coords_min, self.coords_max)
