"""Convolution modules."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, and not there where types are checked.

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from voxax.errors import InputError
from voxax.geometry import KernelShape
from voxax.torch.functional import Size, conv_by_text
from voxax.torch.static_text import relation_facts, request_text, spec_text
from voxax.torch.voxels import Voxels
from voxax.tuning import Request


class _Convolution(nn.Module):
    """What dense and depthwise convolutions share."""

    NDIM: ClassVar[int | None] = None
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_channels: int, ndim: int | None, capacity: int | None) -> None:
        super().__init__()
        if ndim is not None and self.NDIM not in (None, ndim):
            raise InputError(
                f"{type(self).__name__} has {self.NDIM} axes, got ndim={ndim}: leave ndim out, or "
                "use SpatiallySparseConv"
            )
        self.in_channels, self.capacity = in_channels, capacity
        self.ndim = ndim or self.NDIM or 3

    def _parameters_of(
        self, shape: tuple[int, ...], fan_in: int, channels: int, bias: bool, dtype: Any
    ) -> None:
        self.weight = nn.Parameter(torch.randn(shape, dtype=dtype) * math.sqrt(2 / fan_in))
        self.bias = nn.Parameter(torch.zeros(channels, dtype=dtype)) if bias else None

    def forward(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        """Convolve; ``out_voxels`` gives the target of a transposed convolution."""
        if voxels.num_channels != self.in_channels:
            raise InputError(
                f"{type(self).__name__} expects {self.in_channels} channels, the voxels have "
                f"{voxels.num_channels}"
            )
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
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise InputError(
                f"groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        self.out_channels, self.groups = out_channels, groups
        relation = (kernel_size, stride, dilation, transposed, generative)
        self.spec = spec_text(self.ndim, *relation, kernel_shape, spatial_shape)
        self.options = request_text(
            "dense" if groups == 1 else "grouped",
            precision,
            fwd_algo=fwd_algo,
            dgrad_algo=dgrad_algo if dgrad_algo is not None else bwd_algo,
            wgrad_algo=wgrad_algo if wgrad_algo is not None else bwd_algo,
        )
        taps, c_in, c_out = (
            relation_facts(self.spec).num_offsets,
            in_channels // groups,
            out_channels,
        )
        shape = (taps, c_in, c_out) if groups == 1 else (taps, groups, c_in, c_out // groups)
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
        requests = {"fwd_algo": fwd_algo, "dgrad_algo": bwd_algo, "wgrad_algo": bwd_algo}
        self.options = request_text("depthwise", precision, **requests)
        taps = relation_facts(self.spec).num_offsets
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
        strides = [stride] if isinstance(stride, int) else list(stride)
        clash = [name for name in ("transposed", "generative") if options.get(name)]
        if any(s != 1 for s in strides):
            clash.insert(0, f"stride {stride}")
        if clash:
            raise InputError(
                f"{type(self).__name__} keeps the voxels, so it takes no {', '.join(clash)}: use "
                "SparseConv3d"
            )
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
