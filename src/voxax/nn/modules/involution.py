"""Involution: each position computes the kernel that it is read with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.local_conv import local_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal
from voxax.products.convolve import precision_name


class Involution(nnx.Module):
    """:func:`voxax.nn.functional.local_conv` with kernels that two linear layers compute.

    Args:
      channels: C, of input and output.
      kernel_size, stride, dilation: integers, or one per axis.
      ndim: spatial axes, 1 to 3.
      groups: G, each of C / G channels with one kernel.
      reduction: the layer between has ``max(C // reduction, 1)`` channels, and a ReLU.
      dtype: to compute in; None is that of input and parameters.
      param_dtype: of the parameters.
      kernel_init: initializer of both layers.
      precision: of their products; None keeps the input's full precision.
      rngs: None means ``nnx.Rngs(0)``.

    Attributes:
      reduce: ``[C, R]``.
      span: ``[R, K * G]``; span_bias: ``[K * G]``.

    Source: Li et al., "Involution", CVPR 2021 (there with a batch normalisation between the
    layers).
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = 7,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        ndim: int = 2,
        groups: int = 1,
        reduction: int = 4,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        if channels % groups:
            raise InputError(f"groups={groups} must divide channels={channels}")
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.dilation = per_axis(dilation, ndim, "dilation")
        self.groups, self.dtype, self.precision = groups, dtype, precision
        inner, taps = max(channels // reduction, 1), math.prod(self.kernel_size)
        self.reduce = nnx.Param(kernel_init(rngs.params(), (channels, inner), param_dtype))
        self.span = nnx.Param(kernel_init(rngs.params(), (inner, taps * groups), param_dtype))
        self.span_bias = nnx.Param(jnp.zeros((taps * groups,), param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, *outputs, C]``."""
        dtype = x.dtype if self.dtype is None else self.dtype
        x = x.astype(dtype)
        # Kernels are computed where outputs are centred.
        centre = x[(slice(None), *(slice(None, None, s) for s in self.stride))]
        exactly = precision_name(self.precision)
        reduce, span = (p[...].astype(dtype) for p in (self.reduce, self.span))
        inner = jnp.matmul(centre, reduce, precision=exactly)
        kernels = jnp.matmul(jax.nn.relu(inner), span, precision=exactly)
        kernels = kernels + self.span_bias[...].astype(dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        kernels = kernels.reshape(*centre.shape[:-1], -1, self.groups)
        return local_conv(
            x,
            kernels,
            kernel_size=self.kernel_size,
            stride=self.stride,
            dilation=self.dilation,
        )
