"""Deformable convolution that predicts its own offsets and modulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.deform_conv import Modulation, deform_conv
from voxax.nn.functional.grid_conv import grid_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal


class DeformConv(nnx.Module):
    """:func:`voxax.nn.functional.deform_conv` on ``[B, *spatial, C]``, offsets from a convolution.

    The convolution that predicts offsets and mask has the same kernel, stride and dilation, and
    starts at zero: so the layer starts as an ordinary convolution (half of one with ``sigmoid``,
    the mean of the taps with ``softmax``).

    Args:
      in_channels, out_channels: C, C_out; without a weight both are the same.
      kernel_size, stride, dilation: integers, or one per axis.
      ndim: spatial axes, 1 to 3.
      offset_groups: groups of channels that move on their own.
      modulation: ``"sigmoid"`` (v2), ``"softmax"`` (v3), ``"plain"`` (v4); None has no mask (v1).
      use_weight: False sums the taps within channels (v3, v4).
      use_bias: whether there is a bias.
      groups: of the weight.
      dtype: to compute in; None is that of input and parameters.
      param_dtype: of the parameters.
      kernel_init, bias_init: initializers; the weight is drawn as ``[K, C / groups, C_out]``.
      precision: as for the function.
      rngs: None means ``nnx.Rngs(0)``.

    Attributes:
      weight: ``[*T, C / groups, C_out]`` or None.
      bias: ``[C_out]`` or None.
      predict, predict_bias: of the convolution that predicts.
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
        offset_groups: int = 1,
        modulation: Modulation | None = "sigmoid",
        use_weight: bool = True,
        use_bias: bool = True,
        groups: int = 1,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = nnx.initializers.zeros,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        if not use_weight and in_channels != out_channels:
            raise InputError(
                f"in_channels={in_channels}, out_channels={out_channels}: without a weight both "
                "are the same"
            )
        if in_channels % groups or out_channels % groups or in_channels % offset_groups:
            raise InputError(
                f"groups={groups} and offset_groups={offset_groups} must divide "
                f"in_channels={in_channels}, groups also out_channels={out_channels}"
            )
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.dilation = per_axis(dilation, ndim, "dilation")
        self.offset_groups, self.groups = offset_groups, groups
        self.modulation: Modulation | None = modulation
        self.dtype, self.precision = dtype, precision
        taps = math.prod(self.kernel_size)
        shape = (*self.kernel_size, in_channels // groups, out_channels)
        drawn = kernel_init(rngs.params(), (taps, *shape[-2:]), param_dtype) if use_weight else None
        self.weight = None if drawn is None else nnx.Param(drawn.reshape(shape))
        self.bias = (
            nnx.Param(bias_init(rngs.params(), (out_channels,), param_dtype)) if use_bias else None
        )
        self.predicted = offset_groups * taps * (ndim + (modulation is not None))
        self.predict = nnx.Param(
            jnp.zeros((*self.kernel_size, in_channels, self.predicted), param_dtype)
        )
        self.predict_bias = nnx.Param(jnp.zeros((self.predicted,), param_dtype))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, *outputs, C_out]``."""
        ndim, taps = len(self.kernel_size), math.prod(self.kernel_size)
        dtype = x.dtype if self.dtype is None else self.dtype
        x = x.astype(dtype)
        steps = {"stride": self.stride, "dilation": self.dilation, "precision": self.precision}
        found = grid_conv(x, self.predict[...].astype(dtype), **steps)
        found = found + self.predict_bias[...].astype(dtype).reshape((1,) * (ndim + 1) + (-1,))
        found = found.reshape(*found.shape[:-1], self.offset_groups, taps, -1)
        has_mask = self.modulation is not None
        return deform_conv(
            x,
            None if self.weight is None else self.weight[...].astype(dtype),
            found[..., :ndim],
            mask=found[..., ndim] if has_mask else None,
            modulation="plain" if self.modulation is None else self.modulation,
            bias=None if self.bias is None else self.bias[...].astype(dtype),
            kernel_size=self.kernel_size,
            groups=self.groups,
            **steps,
        )
