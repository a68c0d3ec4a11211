"""Convolutions."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from voxax.torch.spconv import constants
from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.algo import Activation, ConvAlgo
from voxax.torch.spconv.core import SparseConvTensor, expand_nd
from voxax.torch.spconv.errors import SpconvError, check_cpu, check_features, whole
from voxax.torch.spconv.fusion import folded, know
from voxax.torch.spconv.indice_data import ImplicitGemmIndiceData, IndiceData
from voxax.torch.spconv.kernel_map import KernelMap
from voxax.torch.spconv.modules import SparseModule
from voxax.torch.spconv.ops import activate, get_conv_output_size, get_deconv_output_size
from voxax.torch.spconv.products import convolve
from voxax.torch.spconv.recording import VoxelCount, recorded
from voxax.torch.spconv.sites import Sites
from voxax.torch.spconv.uncompiled import uncompiled

__all__ = ["tv"]

Size = int | Sequence[int]


class SparseConvolution(VoxelCount, SparseModule):
    """Base of all convolutions; arguments as in PyTorch where not said here.

    Args:
      ndim: number of spatial axes.
      kernel_size, stride, padding, dilation, output_padding: integers, or one per axis.
      groups: 1.
      subm: keep the voxels; stride and padding then mean nothing.
      transposed: outputs at ``in * stride - padding + k * dilation``.
      inverse: back to the voxels of the layer that has the same ``indice_key``.
      indice_key: share the kernel map with other layers.
      algo: the form of the pairs in ``indice_dict``. Results do not depend on it, but pooling's.
      fp32_accum, large_kernel_fast_algo: accepted; sums are in float32 at least.
      record_voxel_count: keep the largest number of outputs, see :meth:`get_max_num_voxels`.
      act_type, act_alpha, act_beta: function behind the layer, in evaluation mode only.
      name: by which ``benchmark_record`` has the layer.

    Raises:
      SpconvError: sizes that are no kernel, or groups.
    """

    IS_CONVOLUTION = True

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Size = 3,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Size = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: Activation = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(name=name)
        ndim, groups = whole("ndim", ndim), whole("groups", groups)
        in_channels = whole("in_channels", in_channels)
        out_channels = whole("out_channels", out_channels)
        if groups != 1:
            raise SpconvError(f"groups={groups}: spconv's layers have one group")
        self.ndim, self.in_channels, self.out_channels = ndim, in_channels, out_channels
        self.kernel_size = expand_nd(ndim, kernel_size)
        self.stride, self.padding = expand_nd(ndim, stride), expand_nd(ndim, padding)
        self.dilation = expand_nd(ndim, dilation)
        self.output_padding = expand_nd(ndim, output_padding)
        taps = math.prod(self.kernel_size)
        _check_sizes(self.kernel_size, self.stride, self.padding, self.dilation)
        self.conv1x1 = taps == 1 and (subm or math.prod(self.stride) == 1)
        if self.conv1x1 and not subm and any(self.padding):
            raise SpconvError(f"padding={self.padding} of a kernel of one tap: expected 0")
        if self.conv1x1 and act_type is not Activation.None_:
            raise SpconvError(f"act_type={act_type} of a kernel of one tap: not supported")
        self.transposed, self.inverse, self.groups, self.subm = transposed, inverse, groups, subm
        self.indice_key, self.fp32_accum = indice_key, fp32_accum
        few = taps <= (128 if large_kernel_fast_algo else 32)
        usual = ConvAlgo.MaskImplicitGemm if few else ConvAlgo.Native
        self.algo = usual if algo is None else algo
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        self.scale, self.zero_point = 1.0, 0
        self._count_voxels(record_voxel_count, not subm and not inverse, device)
        self.weight_shape = [out_channels, *self.kernel_size, in_channels]
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.zeros(self.weight_shape, **made))
        self.bias = nn.Parameter(torch.zeros(out_channels, **made)) if bias else None
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_to_saved_layout)

    def reset_parameters(self) -> None:
        """Draw weights and bias from PyTorch's generator, the numbers that spconv draws."""
        fan_in = self.in_channels * math.prod(self.kernel_size)
        # Kaiming's uniform distribution with a = sqrt(5), in this order of operations.
        std = nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(fan_in)
        bound = math.sqrt(3.0) * std
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
        if self.bias is not None:
            bound = 1 / math.sqrt(fan_in)
            nn.init.uniform_(self.bias, -bound, bound)

    def is_inverseable(self) -> bool:
        """Return whether an inverse convolution can lead back from this layer."""
        return self.indice_key is not None and not self.subm

    def extra_repr(self) -> str:
        """Return the arguments, as spconv prints them."""
        said = [str(self.in_channels), str(self.out_channels)]
        for name in ("kernel_size", "stride", "padding", "dilation", "output_padding"):
            said.append(f"{name}={getattr(self, name)}")
        if self.bias is None:
            said.append("bias=False")
        said.append(f"algo={self.algo}")
        if self.act_type is not Activation.None_:
            said.append(f"act={self.act_type}")
        return ", ".join(said)

    @uncompiled
    def forward(
        self, input: SparseConvTensor, add_input: SparseConvTensor | None = None
    ) -> SparseConvTensor:
        """Convolve.

        Args:
          input: of ``in_channels`` channels.
          add_input: is added to the result, at its voxels.

        Raises:
          SpconvError: wrong channels, dtypes, indices, or an ``indice_key`` of another layer.
        """
        if type(self)._conv_forward is SparseConvolution._conv_forward:
            return self._forward(input, add_input)
        names = {"name": self.name, "sparse_unique_name": self._sparse_unique_name}
        act = {name: getattr(self, name) for name in ("act_type", "act_alpha", "act_beta")}
        parameters = self.weight, self.bias
        return self._conv_forward(self.training, input, *parameters, add_input, **names, **act)

    def _forward(
        self, input: SparseConvTensor, add_input: SparseConvTensor | None
    ) -> SparseConvTensor:
        out = self.with_epilogue(input)
        if add_input is None:
            return out
        total = out.features + add_input.features
        return out.replace_feature(activate(total, self.act_type, self.act_alpha))

    def with_epilogue(
        self, input: SparseConvTensor, norm: nn.BatchNorm1d | None = None, relu: bool = False
    ) -> SparseConvTensor:
        """Convolve, normalize with the running statistics, and apply a ReLU.

        With ``norm`` or ``relu``, gradients are off.

        Raises:
          SpconvError: as :meth:`forward`.
        """
        if not isinstance(input, SparseConvTensor):
            raise SpconvError(f"{type(input).__name__} where a SparseConvTensor is expected")
        check_features(input.features, input.indices.shape[0], self.in_channels)
        check_cpu(self.weight, "weight")
        if input.indices.shape[1] != self.ndim + 1:
            raise SpconvError(
                f"a {self.ndim}-D layer on indices of {input.indices.shape[1] - 1} axes"
            )
        if self.training and self.act_type is not Activation.None_:
            raise SpconvError(
                f"act_type={self.act_type} in training mode: a function behind the layer is for "
                "evaluation only; put a module behind the layer"
            )
        with recorded(self, input, "SparseConvolution", self._parameters_for_record) as record:
            factor, bias = (None, self.bias) if norm is None else folded(norm, self.bias)
            if self.conv1x1:
                out = self._pointwise(input, factor, bias, relu)
            else:
                out = self._convolve(input, factor, bias, relu, record)
            record.done(out)
        return out

    def _conv_forward(
        self,
        training: bool,
        input: SparseConvTensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        add_input: SparseConvTensor | None = None,
        channel_scale: torch.Tensor | None = None,
        output_scale: float | None = None,
        name: str | None = None,
        sparse_unique_name: str = "",
        act_type: Activation = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
    ) -> SparseConvTensor:
        """Convolve with these, for subclasses that make their weight, or change the result.

        Raises:
          SpconvError: as :meth:`forward`; or arguments of quantized inference.
        """
        if channel_scale is not None or output_scale is not None:
            raise SpconvError("channel_scale and output_scale are for int8, which GPUs have only")
        layer = copy.copy(self)
        layer._parameters = {}
        layer.weight, layer.bias, layer.training = weight, bias, training  # type: ignore[assignment]
        layer.name, layer._sparse_unique_name = name, sparse_unique_name
        layer.act_type, layer.act_alpha, layer.act_beta = act_type, act_alpha, act_beta
        return layer._forward(input, add_input)

    def _check_subm_reuse_valid(
        self,
        inp: SparseConvTensor,
        spatial_shape: list[int],
        datas: IndiceData | ImplicitGemmIndiceData,
    ) -> None:
        """Raise :class:`SpconvError` unless this layer can use these pairs, for subclasses."""
        del spatial_shape
        self._check_reuse(inp.sites(), datas)

    def _check_inverse_reuse_valid(
        self,
        inp: SparseConvTensor,
        spatial_shape: list[int],
        datas: IndiceData | ImplicitGemmIndiceData,
    ) -> None:
        """Raise :class:`SpconvError` unless this layer can go back along these pairs."""
        del spatial_shape
        self._checked_inverse(inp.sites(), datas)

    def _parameters_for_record(self) -> dict[str, Any]:
        sizes = ("kernel_size", "stride", "padding", "dilation", "output_padding")
        found = {name: getattr(self, name) for name in (*sizes, "subm", "transposed")}
        return {**found, "input_channels": self.in_channels, "out_channels": self.out_channels}

    def _pointwise(
        self,
        input: SparseConvTensor,
        factor: torch.Tensor | None,
        bias: torch.Tensor | None,
        relu: bool,
    ) -> SparseConvTensor:
        # spconv 2.3 reads the weight's memory as [C_in, C_out] here, and checkpoints depend on it.
        weight = self.weight.view(self.in_channels, self.out_channels)
        weight = weight if factor is None else weight * factor
        features = torch.mm(*_same_dtype(input.features, weight))
        if bias is not None:
            features = features.add_(bias.to(features.dtype))
        return input.replace_feature(features.relu_() if relu else features)

    def _convolve(
        self,
        input: SparseConvTensor,
        factor: torch.Tensor | None,
        bias: torch.Tensor | None,
        relu: bool,
        record: Any,
    ) -> SparseConvTensor:
        kernel_map, sites, indice_dict = self._relation(input)
        record.found()
        features, weight = input.features, self.weight
        if factor is not None:
            weight = weight * factor.view(-1, *[1] * (self.ndim + 1))
        if self.training and torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            features, weight = features.to(dtype), weight.to(dtype)
        features = convolve(*_same_dtype(features, weight), kernel_map, bias, relu)
        features = activate(features, self.act_type, self.act_alpha)
        self._count(features.shape[0])
        out = input.on(sites, features)
        out.indice_dict = indice_dict
        return out

    def _relation(self, input: SparseConvTensor) -> tuple[KernelMap, Sites, dict]:
        """Return the map, where it leads, and the pairs by key behind this layer."""
        data, sites = input.find_indice_pair(self.indice_key), input.sites()
        if data is not None and data.algo != self.algo:
            raise SpconvError(
                f"indice_key {self.indice_key!r} belongs to a layer with algo={data.algo}, this "
                f"one has {self.algo}: layers that share a key have one algorithm"
            )
        if self.inverse:
            data = self._checked_inverse(sites, data)
            return data.kernel_map.transpose(), data.sites, input.indice_dict
        if data is not None:
            self._check_reuse(sites, data)
            return data.kernel_map, sites, input.indice_dict
        if self.subm:
            kernel_map, out = sites.submanifold(self.kernel_size, self.dilation), sites
        else:
            sizes = self.kernel_size, self.stride, self.padding, self.dilation
            if self.transposed:
                shape = get_deconv_output_size(sites.spatial_shape, *sizes, self.output_padding)
            else:
                shape = get_conv_output_size(sites.spatial_shape, *sizes)
            kernel_map, out = sites.reached(*sizes, shape, self.transposed)
        if self.indice_key is None:
            return kernel_map, out, input.indice_dict
        kind = IndiceData if self.algo is ConvAlgo.Native else ImplicitGemmIndiceData
        sizes = self.kernel_size, self.stride, self.dilation, self.padding
        made = kind.of(kernel_map, sites, out, self.subm, self.algo, *sizes)
        return kernel_map, out, {**input.indice_dict, self.indice_key: made}

    def _checked_inverse(
        self, sites: Sites, data: IndiceData | ImplicitGemmIndiceData | None
    ) -> IndiceData | ImplicitGemmIndiceData:
        if self.indice_key is None or data is None:
            raise SpconvError(
                f"no layer with indice_key={self.indice_key!r} has run before this inverse "
                "convolution: it leads back from a strided convolution or a pooling with that key"
            )
        if data.is_subm:
            raise SpconvError(
                f"indice_key {self.indice_key!r} belongs to a submanifold layer: an inverse "
                "convolution leads back from a strided convolution or a pooling"
            )
        _check_alike(self.indice_key, "kernel size", data.ksize, self.kernel_size)
        _check_alike(self.indice_key, "spatial shape", data.out_spatial_shape, sites.spatial_shape)
        _check_same_voxels(self.indice_key, data.out_sites, sites)
        if not data.sites.hold(data.sites.indices):
            raise SpconvError(
                f"the voxels to which indice_key {self.indice_key!r} leads back were written to "
                "since its layer ran: write into a clone of indices"
            )
        return data

    def _check_reuse(self, sites: Sites, data: IndiceData | ImplicitGemmIndiceData) -> None:
        if not (self.subm and data.is_subm):
            raise SpconvError(
                f"indice_key {self.indice_key!r} already exists in this sparse tensor: only "
                "submanifold layers, and an inverse convolution, use a key again"
            )
        _check_alike(self.indice_key, "kernel size", data.ksize, self.kernel_size)
        _check_alike(self.indice_key, "dilation", data.dilation, self.dilation)
        _check_alike(self.indice_key, "spatial shape", data.spatial_shape, sites.spatial_shape)
        _check_same_voxels(self.indice_key, data.sites, sites)


def _to_saved_layout(
    layer: SparseConvolution, state_dict: dict[str, torch.Tensor], prefix: str, *rest: Any
) -> None:
    """Turn a weight of another layout, which the environment names, into [C_out, *k, C_in]."""
    del rest
    layout, key, ndim = constants.SAVED_WEIGHT_LAYOUT, f"{prefix}weight", layer.ndim
    if layout not in ("", "KRSC", "RSKC", "RSCK"):
        raise SpconvError(f"SPCONV_SAVED_WEIGHT_LAYOUT={layout!r}: expected KRSC, RSKC or RSCK")
    if layout in ("RSKC", "RSCK") and key in state_dict:
        out, into = (ndim, ndim + 1) if layout == "RSKC" else (ndim + 1, ndim)
        state_dict[key] = state_dict[key].permute(out, *range(ndim), into).contiguous()


def _check_alike(key: str | None, what: str, expected: Any, found: Any) -> None:
    if expected != found:
        raise SpconvError(
            f"layers with the same indice_key {key!r} have one {what}: expected {expected}, this "
            f"layer has {found}"
        )


def _check_same_voxels(key: str | None, expected: Sites, found: Sites) -> None:
    if expected is not found and not expected.hold(found.indices):
        raise SpconvError(
            f"indice_key {key!r} was left by a layer on other voxels ({len(expected.indices)}, "
            f"here {len(found.indices)}), or on the same in another order: take another key, or a "
            "tensor without these pairs (indice_dict={})"
        )


def _check_sizes(
    kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> None:
    if min(kernel_size) < 1 or min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise SpconvError(
            f"kernel_size {kernel_size}, stride {stride}, dilation {dilation}, padding {padding}: "
            "the first three are 1 or more, padding 0 or more"
        )


def _same_dtype(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


SparseConvolutionBase = SparseConvolution
"""spconv's name of what layers of quantized inference share with others."""


class _Strided(SparseConvolution):
    """Base of layers onto every voxel that a tap reaches."""

    NDIM: ClassVar[int]
    TRANSPOSED: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        sizes = kernel_size, stride, padding, dilation
        super().__init__(
            self.NDIM,
            in_channels,
            out_channels,
            *sizes,
            groups,
            bias,
            transposed=self.TRANSPOSED,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            record_voxel_count=record_voxel_count,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


class _Transposed(_Strided):
    TRANSPOSED = True


class _Submanifold(SparseConvolution):
    """Base of layers that keep the voxels; stride and padding mean nothing."""

    NDIM: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.NDIM,
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            True,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


class _Inverse(SparseConvolution):
    """Base of layers back to the voxels of the layer with the same ``indice_key``."""

    NDIM: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        indice_key: str | None,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.NDIM,
            in_channels,
            out_channels,
            kernel_size,
            bias=bias,
            inverse=True,
            indice_key=indice_key,
            algo=algo,
            fp32_accum=fp32_accum,
            large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )


class SparseConv1d(_Strided):
    """1-D convolution onto every voxel that a tap reaches; see :class:`SparseConvolution`."""

    NDIM = 1


class SparseConv2d(_Strided):
    """2-D convolution onto every voxel that a tap reaches; see :class:`SparseConvolution`."""

    NDIM = 2


class SparseConv3d(_Strided):
    """3-D convolution onto every voxel that a tap reaches; see :class:`SparseConvolution`."""

    NDIM = 3


class SparseConv4d(_Strided):
    """4-D convolution onto every voxel that a tap reaches; see :class:`SparseConvolution`."""

    NDIM = 4


class SparseConvTranspose1d(_Transposed):
    """1-D transposed convolution onto every voxel in reach; see :class:`SparseConvolution`."""

    NDIM = 1


class SparseConvTranspose2d(_Transposed):
    """2-D transposed convolution onto every voxel in reach; see :class:`SparseConvolution`."""

    NDIM = 2


class SparseConvTranspose3d(_Transposed):
    """3-D transposed convolution onto every voxel in reach; see :class:`SparseConvolution`."""

    NDIM = 3


class SparseConvTranspose4d(_Transposed):
    """4-D transposed convolution onto every voxel in reach; see :class:`SparseConvolution`."""

    NDIM = 4


class SparseInverseConv1d(_Inverse):
    """1-D convolution back along the pairs of ``indice_key``; see :class:`SparseConvolution`."""

    NDIM = 1


class SparseInverseConv2d(_Inverse):
    """2-D convolution back along the pairs of ``indice_key``; see :class:`SparseConvolution`."""

    NDIM = 2


class SparseInverseConv3d(_Inverse):
    """3-D convolution back along the pairs of ``indice_key``; see :class:`SparseConvolution`."""

    NDIM = 3


class SparseInverseConv4d(_Inverse):
    """4-D convolution back along the pairs of ``indice_key``; see :class:`SparseConvolution`."""

    NDIM = 4


class SubMConv1d(_Submanifold):
    """1-D convolution that keeps the voxels; see :class:`SparseConvolution`."""

    NDIM = 1


class SubMConv2d(_Submanifold):
    """2-D convolution that keeps the voxels; see :class:`SparseConvolution`."""

    NDIM = 2


class SubMConv3d(_Submanifold):
    """3-D convolution that keeps the voxels; see :class:`SparseConvolution`."""

    NDIM = 3


class SubMConv4d(_Submanifold):
    """4-D convolution that keeps the voxels; see :class:`SparseConvolution`."""

    NDIM = 4


DEFAULT_SPARSE_CONV_TYPES = {
    kind
    for base in (_Strided, _Transposed, _Inverse, _Submanifold)
    for kind in base.__subclasses__()
    if kind is not _Transposed
}
"""All public convolutions."""
know(SparseConvolution, *DEFAULT_SPARSE_CONV_TYPES)
