"""Convolution layers with spconv's names: strided, transposed, inverse and submanifold."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from voxax.torch.core.errors import ArgumentError, check_cpu, whole
from voxax.torch.core.kernel_map import KernelMap
from voxax.torch.core.known_calls import know
from voxax.torch.core.products import convolve
from voxax.torch.core.uncompiled import uncompiled
from voxax.torch.spconv import constants
from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv.algo import Activation, ConvAlgo
from voxax.torch.spconv.core import (
    ImplicitGemmIndiceData,
    IndiceData,
    Pairs,
    Sites,
    SparseConvTensor,
    expand_nd,
)
from voxax.torch.spconv.modules import SparseModule
from voxax.torch.spconv.ops import activate, by_tap, relation
from voxax.torch.spconv.window import Size, Window

__all__ = ["ImplicitGemmIndiceData", "IndiceData", "SparseModule", "tv"]


class SparseConvolution(Window):
    """Base of all convolutions of this package; arguments not listed are as in PyTorch.

    Args:
      ndim: number of spatial axes.
      kernel_size, stride, padding, dilation, output_padding: integers, or one per axis.
      groups: 1; other values are an error.
      subm: whether outputs are at the input's voxels; stride and padding are then ignored.
      transposed: whether outputs are at ``in * stride - padding + k * dilation`` for each tap k.
      inverse: whether outputs are at the input voxels of the layer with the same ``indice_key``.
      indice_key: name under which layers share a kernel map in ``indice_dict``; None shares none.
      algo: chooses the class of kernel maps in ``indice_dict``; results do not depend on it. None
        means ``MaskImplicitGemm`` for kernels of up to 32 taps, else ``Native``.
      fp32_accum: ignored; sums are in float32 or a wider dtype.
      large_kernel_fast_algo: whether ``algo=None`` means ``MaskImplicitGemm`` up to 128 taps.
      record_voxel_count: whether to store the largest number of outputs for
        :meth:`get_max_num_voxels`.
      act_type, act_alpha, act_beta: activation after the layer, in evaluation mode only;
        ``act_alpha`` is the slope of LeakyReLU, and ``act_beta`` is ignored.
      name: key of the layer in the tensor's ``benchmark_record``.

    Raises:
      SpconvError: invalid sizes, ``groups`` other than 1, or an activation in a layer of one tap.
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
        sizes, counts = (kernel_size, stride, padding, dilation), record_voxel_count
        counts = counts and not subm and not inverse
        few = 128 if large_kernel_fast_algo else 32
        super().__init__(ndim, sizes, subm, indice_key, algo, few, counts, name, device)
        if whole("groups", groups) != 1:
            raise ArgumentError(f"groups={groups}: spconv's layers have one group")
        self.in_channels = whole("in_channels", in_channels)
        self.out_channels = whole("out_channels", out_channels)
        self.output_padding = expand_nd(self.ndim, output_padding)
        if min(self.kernel_size + self.stride + self.dilation) < 1 or min(self.padding) < 0:
            raise ArgumentError(
                f"kernel_size {self.kernel_size}, stride {self.stride}, dilation {self.dilation}, "
                f"padding {self.padding}: the first three are 1 or more, padding 0 or more"
            )
        point = math.prod(self.kernel_size) == 1
        self.conv1x1 = point and (subm or math.prod(self.stride) == 1)
        if self.conv1x1 and not subm and any(self.padding):
            raise ArgumentError(f"padding={self.padding} of a kernel of one tap: expected 0")
        if self.conv1x1 and act_type is not Activation.None_:
            raise ArgumentError(f"act_type={act_type} of a kernel of one tap: not supported")
        self.transposed, self.inverse, self.groups = transposed, inverse, 1
        self.fp32_accum, self.record_voxel_count = fp32_accum, record_voxel_count
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        self.scale, self.zero_point = 1.0, 0
        self.weight_shape = [self.out_channels, *self.kernel_size, self.in_channels]
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.zeros(self.weight_shape, **made))
        self.bias = nn.Parameter(torch.zeros(self.out_channels, **made)) if bias else None
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(type(self)._load_weight_different_layout)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A pickle of spconv has an object of cumm, see core_cc.PickledActivation.
        super().__setstate__({**state, "act_type": Activation(state["act_type"].value)})

    def reset_parameters(self) -> None:
        """Draw random weights and bias from PyTorch's generator: the same numbers as spconv."""
        root = math.sqrt(self.in_channels * math.prod(self.kernel_size))
        # Kaiming's uniform distribution with a = sqrt(5), in this order of operations.
        bound = math.sqrt(3.0) * (nn.init.calculate_gain("leaky_relu", math.sqrt(5)) / root)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / root, 1 / root)

    def _load_weight_different_layout(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: Any
    ) -> None:
        """Permute the layer's weight in a checkpoint to ``[C_out, *k, C_in]``, before it is loaded.

        ``state_dict`` is the checkpoint. The weight's layout in it is ``SAVED_WEIGHT_LAYOUT``.
        Pickles of spconv contain the name of this method.
        """
        del rest
        layout, key, ndim = constants.SAVED_WEIGHT_LAYOUT, f"{prefix}weight", self.ndim
        if layout not in ("", "KRSC", "RSKC", "RSCK"):
            raise ArgumentError(
                f"SPCONV_SAVED_WEIGHT_LAYOUT={layout!r}: expected KRSC, RSKC or RSCK"
            )
        if layout in ("RSKC", "RSCK") and key in state_dict:
            out, into = (ndim, ndim + 1) if layout == "RSKC" else (ndim + 1, ndim)
            state_dict[key] = state_dict[key].permute(out, *range(ndim), into).contiguous()

    def is_inverseable(self) -> bool:
        """Return whether an inverse convolution can use this layer's ``indice_key``."""
        return self.indice_key is not None and not self.subm

    def extra_repr(self) -> str:
        """Return the text that ``repr`` shows for the arguments, as in spconv."""
        names = ("kernel_size", "stride", "padding", "dilation", "output_padding")
        said = [f"{name}={getattr(self, name)}" for name in names]
        said += ["bias=False"] * (self.bias is None) + [f"algo={self.algo}"]
        said += [f"act={self.act_type}"] * (self.act_type is not Activation.None_)
        return ", ".join([f"{self.in_channels}, {self.out_channels}", *said])

    @uncompiled
    def forward(
        self, input: SparseConvTensor, add_input: SparseConvTensor | None = None
    ) -> SparseConvTensor:
        """Return the convolution of ``input``, plus the features of ``add_input`` if given.

        An activation ``act_type`` is applied to the convolution, and then to the sum.

        Raises:
          SpconvError: wrong channels, dtypes, indices, or an ``indice_key`` of another layer.
        """
        if type(self)._conv_forward is SparseConvolution._conv_forward:
            return self._forward(input, add_input)
        given = {
            name: getattr(self, name) for name in ("name", "act_type", "act_alpha", "act_beta")
        }
        given["sparse_unique_name"] = self._sparse_unique_name
        parameters = self.weight, self.bias
        return self._conv_forward(self.training, input, *parameters, add_input, **given)

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
        """Return the convolution of ``input``, optionally followed by a batch norm and a ReLU.

        ``norm`` is the batch norm, which uses its running averages, or None. Pass ``norm`` or
        ``relu=True`` only if gradients are off.
        """
        record = self._begin(input, "SparseConvolution", self.in_channels)
        check_cpu(self.weight, "weight")
        axes = input.indices.shape[1] - 1
        if axes != self.ndim:
            raise ArgumentError(f"a {self.ndim}-D layer on indices of {axes} axes")
        if self.training and self.act_type is not Activation.None_:
            raise ArgumentError(
                f"act_type={self.act_type} in training mode: a function after the layer is for "
                "evaluation only; put a module after the layer"
            )
        factor, bias = (None, self.bias) if norm is None else _folded(norm, self.bias)
        features, weight = input.features, self.weight
        if self.conv1x1:
            # spconv 2.3 reads the memory as [C_in, C_out] here, and checkpoints depend on it.
            weight = weight.view(self.in_channels, self.out_channels)
            weight = weight if factor is None else weight * factor
            features = torch.mm(*_same_dtype(features, weight))
            features = features if bias is None else features.add_(bias.to(features.dtype))
            out = input.replace_feature(features.relu_() if relu else features)
        else:
            kernel_map, sites, indice_dict = self._relation(input)
            record.found()
            if factor is not None:
                weight = weight * factor.view(-1, *[1] * (self.ndim + 1))
            if self.training and torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
                features, weight = features.to(dtype), weight.to(dtype)
            features = convolve(*_same_dtype(features, by_tap(weight)), kernel_map, bias, relu)
            features = activate(features, self.act_type, self.act_alpha)
            self._count(features.shape[0])
            out = input.on(sites, features)
            out.indice_dict = indice_dict
        record.done(out)
        return out

    def _conv_forward(
        self,
        training: bool,
        input: SparseConvTensor,
        weight: Tensor,
        bias: Tensor | None,
        add_input: SparseConvTensor | None = None,
        channel_scale: Tensor | None = None,
        output_scale: float | None = None,
        name: str | None = None,
        sparse_unique_name: str = "",
        act_type: Activation = Activation.None_,
        act_alpha: float = 0,
        act_beta: float = 0,
    ) -> SparseConvTensor:
        """Return the convolution with the given weight, bias and activation instead of the layer's.

        Subclasses may call or override this method to compute the weight or to change the result.
        ``channel_scale`` and ``output_scale`` must be None.
        """
        if channel_scale is not None or output_scale is not None:
            raise ArgumentError("channel_scale and output_scale are for int8, which GPUs have only")
        layer = copy.copy(self)
        layer._parameters = {}
        layer.weight, layer.bias, layer.training = weight, bias, training  # type: ignore[assignment]
        layer.name, layer._sparse_unique_name = name, sparse_unique_name
        layer.act_type, layer.act_alpha, layer.act_beta = act_type, act_alpha, act_beta
        return layer._forward(input, add_input)

    def _check_subm_reuse_valid(
        self, inp: SparseConvTensor, spatial_shape: list[int], datas: Pairs
    ) -> None:
        """Raise :class:`SpconvError` unless this submanifold layer can use a stored kernel map.

        ``datas`` is the entry of ``inp.indice_dict`` with the map. ``spatial_shape`` is ignored.
        """
        del spatial_shape
        self._check_reuse(inp.sites(), datas)

    def _check_inverse_reuse_valid(
        self, inp: SparseConvTensor, spatial_shape: list[int], datas: Pairs
    ) -> None:
        """Raise :class:`SpconvError` unless this inverse layer can use a stored kernel map.

        ``datas`` is the entry of ``inp.indice_dict`` with the map. ``spatial_shape`` is ignored.
        """
        del spatial_shape
        self._checked_inverse(inp.sites(), datas)

    def _parameters_for_record(self) -> dict[str, Any]:
        names = ("output_padding", "subm", "transposed")
        found = super()._parameters_for_record() | {name: getattr(self, name) for name in names}
        return {**found, "input_channels": self.in_channels, "out_channels": self.out_channels}

    def _relation(self, input: SparseConvTensor) -> tuple[KernelMap, Sites, dict]:
        """Return the layer's kernel map, its output voxels, and the output's ``indice_dict``.

        The map is from the voxels of ``input`` to the output voxels.
        """
        data, sites = input.find_indice_pair(self.indice_key), input.sites()
        if data is not None and data.algo != self.algo and data.ksize == self.kernel_size:
            raise ArgumentError(
                f"indice_key {self.indice_key!r} belongs to a layer with algo={data.algo}, this "
                f"one has {self.algo}: layers that share a key have one algorithm"
            )
        if self.inverse:
            data = self._checked_inverse(sites, data)
            return data.kernel_map.transpose(), data.sites, input.indice_dict
        if data is not None:
            self._check_reuse(sites, data)
            return data.kernel_map, sites, input.indice_dict
        sizes = self.kernel_size, self.stride, self.padding, self.dilation
        kind = self.subm, self.transposed, self.output_padding
        kernel_map, out = relation(sites, sizes, *kind)
        return kernel_map, out, self._left(input, kernel_map, sites, out)

    def _checked_inverse(self, sites: Sites, data: Pairs | None) -> Pairs:
        if self.indice_key is None or data is None:
            raise ArgumentError(
                f"no layer with indice_key={self.indice_key!r} has run before this inverse "
                "convolution: it leads back from a strided convolution or a pooling with that key"
            )
        if data.is_subm:
            raise ArgumentError(
                f"indice_key {self.indice_key!r} belongs to a submanifold layer: an inverse "
                "convolution leads back from a strided convolution or a pooling"
            )
        self._check_same(sites, data, data.out_sites)
        if not data.sites.hold(data.sites.indices):
            raise ArgumentError(
                f"the voxels to which indice_key {self.indice_key!r} leads back were written to "
                "since its layer ran: write into a clone of indices"
            )
        return data

    def _check_reuse(self, sites: Sites, data: Pairs) -> None:
        if not (self.subm and data.is_subm):
            raise ArgumentError(
                f"indice_key {self.indice_key!r} already exists in this sparse tensor: only "
                "submanifold layers, and an inverse convolution, use a key again"
            )
        self._check_same(sites, data, data.sites)

    def _check_same(self, sites: Sites, data: Pairs, expected: Sites) -> None:
        alike = {
            "kernel size": (data.ksize, self.kernel_size),
            "dilation": (data.dilation if data.is_subm else self.dilation, self.dilation),
            "spatial shape": (expected.spatial_shape, sites.spatial_shape),
        }
        for what, (left, found) in alike.items():
            if left != found:
                raise ArgumentError(
                    f"layers with the same indice_key {self.indice_key!r} have one {what}: "
                    f"expected {left}, this layer has {found}"
                )
        if expected is not sites and not expected.hold(sites.indices):
            raise ArgumentError(
                f"indice_key {self.indice_key!r} was left by a layer on other voxels "
                f"({len(expected.indices)}, here {len(sites.indices)}), or on the same in another "
                "order: take another key, or a tensor without these pairs (indice_dict={})"
            )


def _folded(norm: nn.BatchNorm1d, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return a factor and a bias per channel, both ``[C_out]``, for a convolution's output.

    They replace the convolution's ``bias`` and the batch norm in evaluation mode.
    """
    assert norm.running_var is not None
    assert norm.running_mean is not None
    factor = torch.rsqrt(norm.running_var + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight
    shift = -norm.running_mean if bias is None else bias - norm.running_mean
    shift = shift * factor
    return factor, shift if norm.bias is None else shift + norm.bias


def _same_dtype(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


SparseConvolutionBase = SparseConvolution
"""Another name of :class:`SparseConvolution`, which code for spconv uses."""


class _OfDimension(SparseConvolution):
    """Base of the convolutions with a fixed number of spatial axes."""

    # ``subm``, ``output_padding``, ``transposed`` and ``inverse``.
    KIND: ClassVar[tuple[bool, int, bool, bool]] = (False, 0, False, False)


class _Strided(_OfDimension):
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
        sizes = kernel_size, stride, padding, dilation, groups, bias, *self.KIND
        rest = indice_key, algo, fp32_accum, record_voxel_count, Activation.None_, 0, 0
        super().__init__(
            self.NDIM, in_channels, out_channels, *sizes, *rest, large_kernel_fast_algo, name
        )


class _Transposed(_Strided):
    KIND = (False, 0, True, False)


class _Submanifold(_OfDimension):
    KIND = (True, 0, False, False)

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
        sizes = kernel_size, stride, padding, dilation, groups, bias, *self.KIND
        rest = indice_key, algo, fp32_accum, False, Activation.None_, 0, 0
        super().__init__(
            self.NDIM, in_channels, out_channels, *sizes, *rest, large_kernel_fast_algo, name
        )


class _Inverse(_OfDimension):
    KIND = (False, 0, False, True)

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
        sizes = kernel_size, 1, 0, 1, 1, bias, *self.KIND
        rest = indice_key, algo, fp32_accum, False, Activation.None_, 0, 0
        super().__init__(
            self.NDIM, in_channels, out_channels, *sizes, *rest, large_kernel_fast_algo, name
        )


class SparseConv1d(_Strided, ndim=1):
    """1-D convolution with outputs wherever a tap reads a voxel; see :class:`SparseConvolution`."""


class SparseConv2d(_Strided, ndim=2):
    """2-D convolution with outputs wherever a tap reads a voxel; see :class:`SparseConvolution`."""


class SparseConv3d(_Strided, ndim=3):
    """3-D convolution with outputs wherever a tap reads a voxel; see :class:`SparseConvolution`."""


class SparseConv4d(_Strided, ndim=4):
    """4-D convolution with outputs wherever a tap reads a voxel; see :class:`SparseConvolution`."""


class SparseConvTranspose1d(_Transposed, ndim=1):
    """1-D transposed convolution that creates new voxels; see :class:`SparseConvolution`."""


class SparseConvTranspose2d(_Transposed, ndim=2):
    """2-D transposed convolution that creates new voxels; see :class:`SparseConvolution`."""


class SparseConvTranspose3d(_Transposed, ndim=3):
    """3-D transposed convolution that creates new voxels; see :class:`SparseConvolution`."""


class SparseConvTranspose4d(_Transposed, ndim=4):
    """4-D transposed convolution that creates new voxels; see :class:`SparseConvolution`."""


class SparseInverseConv1d(_Inverse, ndim=1):
    """1-D convolution onto the input voxels of an earlier layer with the same ``indice_key``.

    Arguments are as in :class:`SparseConvolution`.
    """


class SparseInverseConv2d(_Inverse, ndim=2):
    """2-D convolution onto the input voxels of an earlier layer with the same ``indice_key``.

    Arguments are as in :class:`SparseConvolution`.
    """


class SparseInverseConv3d(_Inverse, ndim=3):
    """3-D convolution onto the input voxels of an earlier layer with the same ``indice_key``.

    Arguments are as in :class:`SparseConvolution`.
    """


class SparseInverseConv4d(_Inverse, ndim=4):
    """4-D convolution onto the input voxels of an earlier layer with the same ``indice_key``.

    Arguments are as in :class:`SparseConvolution`.
    """


class SubMConv1d(_Submanifold, ndim=1):
    """1-D submanifold convolution, which keeps the voxels; see :class:`SparseConvolution`."""


class SubMConv2d(_Submanifold, ndim=2):
    """2-D submanifold convolution, which keeps the voxels; see :class:`SparseConvolution`."""


class SubMConv3d(_Submanifold, ndim=3):
    """3-D submanifold convolution, which keeps the voxels; see :class:`SparseConvolution`."""


class SubMConv4d(_Submanifold, ndim=4):
    """4-D submanifold convolution, which keeps the voxels; see :class:`SparseConvolution`."""


DEFAULT_SPARSE_CONV_TYPES = {
    kind
    for base in (_Strided, _Transposed, _Inverse, _Submanifold)
    for kind in base.__subclasses__()
    if kind is not _Transposed
}
"""Set of the public convolution classes, from ``SparseConv1d`` to ``SubMConv4d``."""
know(SparseConvolution, *DEFAULT_SPARSE_CONV_TYPES)
