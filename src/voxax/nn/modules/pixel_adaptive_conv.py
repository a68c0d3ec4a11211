"""Pixel-adaptive convolution as a module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.pixel_adaptive_conv import pixel_adaptive_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal
from voxax.products.convolve import precision_name


class PixelAdaptiveConv(nnx.Module):
    """:func:`voxax.nn.functional.pixel_adaptive_conv`, whose guide goes through a linear layer.

    The layer learns which differences of the guide count, and how much: it is their metric. It
    starts as the identity where the guide has as many channels as it gives.

    Args:
      in_channels, out_channels: C, C_out.
      kernel_size, stride, dilation: integers, or one per axis.
      ndim: spatial axes, 1 to 3.
      guide_channels: of what the module is called with as its guide; None takes the input itself.
      embedding: channels that the linear layer gives; None is as many as it takes.
      normalize: divide each position's affinities by their sum.
      use_bias: whether there is a bias.
      dtype: to compute in; None is that of input and parameters.
      param_dtype: of the parameters.
      kernel_init, bias_init: initializers; the weight is drawn as ``[K, C, C_out]``.
      precision: as for the function.
      rngs: None means ``nnx.Rngs(0)``.

    Attributes:
      weight: ``[*T, C, C_out]``; bias: ``[C_out]`` or None.
      metric: ``[guide_channels, embedding]``.

    Source: Su et al., "Pixel-Adaptive Convolutional Neural Networks", CVPR 2019.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        ndim: int = 2,
        guide_channels: int | None = None,
        embedding: int | None = None,
        normalize: bool = False,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = nnx.initializers.zeros,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.dilation = per_axis(dilation, ndim, "dilation")
        self.normalize, self.dtype, self.precision = normalize, dtype, precision
        drawn = kernel_init(
            rngs.params(), (math.prod(self.kernel_size), in_channels, out_channels), param_dtype
        )
        self.weight = nnx.Param(drawn.reshape(*self.kernel_size, in_channels, out_channels))
        self.bias = (
            nnx.Param(bias_init(rngs.params(), (out_channels,), param_dtype)) if use_bias else None
        )
        given = in_channels if guide_channels is None else guide_channels
        if embedding is None or embedding == given:
            metric = jnp.eye(given, dtype=param_dtype)
        else:
            metric = kernel_init(rngs.params(), (given, embedding), param_dtype)
        self.metric = nnx.Param(metric)

    def __call__(self, x: jax.Array, guide: jax.Array | None = None) -> jax.Array:
        """``[B, *outputs, C_out]``; ``guide [B, *spatial, F]``, None is ``x``."""
        dtype = x.dtype if self.dtype is None else self.dtype
        guide = x if guide is None else guide
        embedded = jnp.matmul(
            guide.astype(dtype),
            self.metric[...].astype(dtype),
            precision=precision_name(self.precision),
        )
        return pixel_adaptive_conv(
            x.astype(dtype),
            embedded,
            self.weight[...].astype(dtype),
            bias=None if self.bias is None else self.bias[...].astype(dtype),
            stride=self.stride,
            dilation=self.dilation,
            normalize=self.normalize,
            precision=self.precision,
        )
