"""Convolution whose kernel depends on the position, as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional import dynamic_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal
from voxax.tuning import Request
from voxax.tuning.request import frozen


class DynamicConv(nnx.Module):
    """:func:`voxax.nn.functional.dynamic_conv` with a weight of its own, on ``[B, *spatial, C]``.

    Args:
      in_channels, out_channels: C, C_out.
      kernel_size: the largest, an integer or one per axis.
      ndim: spatial axes, 1 to 3.
      stride: an integer or one per axis.
      use_bias: whether there is a bias.
      bank: how many weights a ``mixture`` mixes; None is one weight, and no mixture.
      tau: width of the ramp of soft sizes.
      method: which strategies may be used; None leaves it to overlays and the environment.
      dtype: to compute in; None is that of input and weight.
      param_dtype: of the parameters.
      kernel_init, bias_init: initializers; the weight is drawn as ``[K, C, C_out]``.
      precision: as for the function.
      rngs: None means ``nnx.Rngs(0)``.

    Attributes:
      weight: ``[*T, C, C_out]``, with ``bank`` M ``[M, *T, C, C_out]``.
      bias: ``[C_out]`` or None.
    """

    weight: nnx.Param
    bias: nnx.Param | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        *,
        ndim: int = 2,
        stride: int | Sequence[int] = 1,
        use_bias: bool = True,
        bank: int | None = None,
        tau: float = 1.0,
        method: Request = None,
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
        self.in_channels, self.out_channels, self.dtype = in_channels, out_channels, dtype
        self.tau, self.precision = float(tau), precision
        self.method = method if method == "bank" else frozen(method, "dynamic", "method")
        taps = 1
        for extent in self.kernel_size:
            taps *= extent
        kernels = [
            kernel_init(rngs.params(), (taps, in_channels, out_channels), param_dtype)
            for _ in range(bank or 1)
        ]
        shape = (*self.kernel_size, in_channels, out_channels)
        weight = jnp.stack(kernels).reshape(*(() if bank is None else (bank,)), *shape)
        self.weight = nnx.Param(weight)
        self.bias = (
            nnx.Param(bias_init(rngs.params(), (out_channels,), param_dtype)) if use_bias else None
        )

    def __call__(
        self,
        x: jax.Array,
        *,
        size: jax.Array | int | None = None,
        dilation: jax.Array | int | Sequence[int] | None = None,
        offsets: jax.Array | None = None,
        mask: jax.Array | None = None,
        mixture: jax.Array | None = None,
    ) -> jax.Array:
        """``[B, *outputs, C_out]``; arguments as for the function."""
        weight = self.weight[...]
        bias = None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            x, weight = x.astype(self.dtype), weight.astype(self.dtype)
            bias = None if bias is None else bias.astype(self.dtype)
        return dynamic_conv(
            x,
            weight,
            size=size,
            dilation=dilation,
            offsets=offsets,
            mask=mask,
            mixture=mixture,
            stride=self.stride,
            method=self.method,
            bias=bias,
            tau=self.tau,
            precision=self.precision,
        )
