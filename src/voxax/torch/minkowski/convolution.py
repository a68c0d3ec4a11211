"""Convolution layers with MinkowskiEngine's names: plain, transposed, generative, channelwise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError, check_cpu, check_features
from voxax.torch.core.features import Features
from voxax.torch.core.products import convolve
from voxax.torch.minkowski.constants import ConvolutionMode, RegionType
from voxax.torch.minkowski.kernel_generator import KernelGenerator, generator_of
from voxax.torch.minkowski.manager import CoordinateManager, Key, given, key_or_new
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.sparse_tensor import SparseTensor, check_sparse, target_key


def _product(
    features: torch.Tensor,
    weight: torch.Tensor,
    generator: KernelGenerator,
    keys: tuple[Key, Key],
    manager: CoordinateManager,
    transposed: bool,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    expand = generator.expand_coordinates
    kernel_map = manager.relation(*keys, generator.kernel(), transposed, expand=expand)
    if kernel_map.taps != len(weight):
        raise ArgumentError(f"a kernel of {len(weight)} taps for a region of {kernel_map.taps}")
    check_features(features, kernel_map.in_rows, weight.shape[1])
    return convolve(*_one_dtype(features, weight), kernel_map, bias)


def _one_dtype(features: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both tensors in autocast's dtype; without autocast, unequal dtypes are an error."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        return features.to(dtype), weight.to(dtype)
    if features.dtype != weight.dtype:
        raise ArgumentError(
            f"features of {features.dtype} for a kernel of {weight.dtype}: convert one of them"
        )
    return features, weight


class MinkowskiConvolutionFunction:
    """Convolution of feature rows, with the interface of an autograd function."""

    _TRANSPOSED = False

    @classmethod
    def apply(
        cls,
        rows: torch.Tensor,
        kernel: torch.Tensor,
        generator: KernelGenerator,
        mode: ConvolutionMode,
        key: Key,
        out_key: Key | None = None,
        manager: CoordinateManager | None = None,
    ) -> torch.Tensor:
        """Return the convolution ``[M, C_out]`` of ``rows [N, C_in]`` at the sites of ``key``.

        ``kernel`` is ``[K, C_in, C_out]``. The outputs are at the sites of ``out_key``. If this key
        is not set, it is set to the sites that the stride of ``generator`` gives. ``mode`` has no
        effect.
        """
        keys = key, key_or_new(out_key, key)
        return _product(rows, kernel, generator, keys, given(manager), cls._TRANSPOSED)


class MinkowskiConvolutionTransposeFunction(MinkowskiConvolutionFunction):
    """Transposed convolution of feature rows, with the interface of an autograd function."""

    _TRANSPOSED = True


class _Layer(MinkowskiModuleBase):
    """Base of all convolutions, with a kernel and a bias drawn from a uniform distribution."""

    kernel: nn.Parameter
    bias: nn.Parameter | None
    kernel_generator: KernelGenerator
    in_channels: int
    out_channels: int
    dimension: int

    def _parameters_of(self, shape: tuple[int, ...], channels: int, bias: bool) -> None:
        if min(shape) < 1:
            raise ArgumentError(f"a kernel of shape {shape}: expected 1 channel or more")
        self.kernel = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.bias = nn.Parameter(torch.empty((1, channels), dtype=torch.float32)) if bias else None

    def reset_parameters(self, is_transpose: bool = False) -> None:
        """Draw kernel and bias uniformly from -b to b, with ``b = 1 / sqrt(channels * taps)``.

        ``channels`` are those of the output if ``is_transpose``, else those of the input. ``taps``
        is the number of kernel offsets.
        """
        channels = self.out_channels if is_transpose else self.in_channels
        bound = 1.0 / math.sqrt(channels * self.kernel_generator.kernel_volume)
        with torch.no_grad():
            self.kernel.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.uniform_(-bound, bound)

    def _check(self, input: Any) -> None:
        check_sparse(input, self.dimension)
        check_cpu(self.kernel, "kernel")
        check_features(input._F, len(input), self.in_channels)

    def _convolved(
        self, input: SparseTensor, weight: torch.Tensor, key: Key, transposed: bool
    ) -> SparseTensor:
        keys, manager = (input.coordinate_map_key, key), input.coordinate_manager
        bias = None if self.bias is None else self.bias[0]
        out = _product(input._F, weight, self.kernel_generator, keys, manager, transposed, bias)
        if key is not input.coordinate_map_key:
            input = SparseTensor(out, coordinate_map_key=key, coordinate_manager=manager)
        return input._with(_features=Features(out, own=True))

    def _text(self, channels: str) -> str:
        generator, size = self.kernel_generator, f"kernel_size={self.kernel_generator.kernel_size}"
        if generator.region_type is RegionType.CUSTOM:
            size = f"kernel_volume={generator.kernel_volume}"
        steps = f"stride={generator.kernel_stride}, dilation={generator.kernel_dilation}"
        return f"{type(self).__name__}({channels}, {size}, {steps})"


class MinkowskiConvolutionBase(_Layer):
    """Base of the convolutions in which each output channel reads all input channels.

    ``kernel`` is ``[K, C_in, C_out]`` for K taps. For one tap, it is ``[C_in, C_out]`` if the
    stride is 1 or there is one spatial axis. ``bias`` is ``[1, C_out]`` or None.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size, stride, dilation: one integer for all axes, or one per axis.
      bias: whether to add a bias.
      kernel_generator: sizes and shape of the kernel, in place of the three sizes.
      is_transpose: whether to convolve from coarse sites to fine sites.
      expand_coordinates: whether outputs are at all sites that read an input through a tap.
      convolution_mode: choice of a GPU kernel, without effect.
      dimension: number of spatial axes.

    Raises:
      ArgumentError: the dimension is missing, or a size or number of channels is below 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        is_transpose: bool = False,
        expand_coordinates: bool = False,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT,
        dimension: Any = -1,
    ) -> None:
        super().__init__()
        sizes = kernel_size, stride, dilation
        self.kernel_generator = generator = generator_of(kernel_generator, *sizes, dimension)
        self.dimension, generator.expand_coordinates = dimension, expand_coordinates
        self.is_transpose, self.convolution_mode = is_transpose, convolution_mode
        self.in_channels, self.out_channels = in_channels, out_channels
        volume = generator.kernel_volume
        self.use_mm = volume == 1 and generator.requires_strided_coordinates
        # MinkowskiEngine gives a strided kernel of one tap in one dimension this shape too.
        flat = volume == 1 and (self.use_mm or self.dimension == 1)
        taps = () if flat else (volume,)
        self._parameters_of((*taps, in_channels, out_channels), out_channels, bias)

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Return the convolution of a sparse tensor.

        Args:
          input: sparse tensor with ``in_channels`` channels and the kernel's dtype.
          coordinates: sites of the outputs: a key, a sparse tensor or ``int32[N, 1 + D]``. None
            coarsens the input's sites by the stride. For a transposed layer, None takes the sites
            that the manager has for the output's tensor stride, or makes sites if it has none.
        """
        self._check(input)
        custom = self.kernel_generator.region_type is RegionType.CUSTOM
        if self.use_mm and coordinates is None and not custom:
            key = input.coordinate_map_key
        else:
            key = target_key(input, coordinates, self._out_stride(input))
        weight = self.kernel if self.kernel.dim() == 3 else self.kernel[None]
        return self._convolved(input, weight, key, self.is_transpose)

    def _out_stride(self, input: SparseTensor) -> list[int]:
        steps = zip(input.tensor_stride, self.kernel_generator.kernel_stride, strict=True)
        if self.is_transpose:
            return [max(wide // step, 1) for wide, step in steps]
        return [fine * step for fine, step in steps]

    def __repr__(self) -> str:
        region = self.kernel_generator.region_type
        custom = f", region_type={region}" if region is RegionType.CUSTOM else ""
        return self._text(f"in={self.in_channels}, out={self.out_channels}{custom}")


class _Plain(MinkowskiConvolutionBase):
    """Base of the plain and the transposed convolution, which take ``expand_coordinates``."""

    _TRANSPOSED = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT,
        dimension: int | None = None,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator
        options = self._TRANSPOSED, expand_coordinates, convolution_mode, dimension
        super().__init__(*sizes, *options)
        self.reset_parameters(self._TRANSPOSED)


class MinkowskiConvolution(_Plain):
    """Convolution that keeps or coarsens the sites; see :class:`MinkowskiConvolutionBase`."""


class MinkowskiConvolutionTranspose(_Plain):
    """Transposed convolution onto finer sites that the coordinate manager already stores.

    If it stores none with the output's tensor stride, the layer makes the sites. Arguments are as
    in :class:`MinkowskiConvolutionBase`.
    """

    _TRANSPOSED = True


class MinkowskiGenerativeConvolutionTranspose(MinkowskiConvolutionBase):
    """Transposed convolution that creates finer sites; see :class:`MinkowskiConvolutionBase`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT,
        dimension: int | None = None,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator
        super().__init__(*sizes, True, True, convolution_mode, dimension)
        self.reset_parameters(True)


class MinkowskiChannelwiseConvolution(_Layer):
    """Convolution of each channel separately (depthwise); ``kernel`` is ``[K, C]``.

    Arguments are as in :class:`MinkowskiConvolutionBase`.
    """

    def __init__(
        self,
        in_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        self.in_channels = self.out_channels = in_channels
        sizes = kernel_size, stride, dilation
        self.kernel_generator = generator_of(kernel_generator, *sizes, dimension)
        self.dimension = dimension
        self.kernel_shape = self.kernel_generator.kernel_volume, in_channels
        self._parameters_of(self.kernel_shape, in_channels, bias)
        self.reset_parameters()

    def forward(self, input: SparseTensor, coords: Any = None) -> SparseTensor:
        """Return the convolution of ``input`` at the sites ``coords``.

        They are a key, a sparse tensor or ``int32[M, 1 + D]``. None coarsens the input's sites by
        the stride.
        """
        self._check(input)
        return self._convolved(input, self.kernel, target_key(input, coords), False)

    def __repr__(self) -> str:
        region = self.kernel_generator.region_type
        return self._text(f"in={self.in_channels}, region_type={region}")
