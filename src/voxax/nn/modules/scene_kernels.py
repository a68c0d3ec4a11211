"""Layers whose kernel each scene chooses: among sizes, or as a mixture of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.mixture_conv import mixture_conv
from voxax.nn.functional.selective_conv import selective_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal
from voxax.products.convolve import precision_name

Gate = Literal["tap", "in", "out"]
GATES = ("tap", "in", "out")


class SelectiveConv(nnx.Module):
    """:func:`voxax.nn.functional.selective_conv`: branches of several sizes, and the selection.

    The pooled channels go through a linear layer to ``max(out_channels // reduction, minimum)``, a
    ReLU, and one to the scores of each branch.

    Args:
      in_channels, out_channels: C, C_out.
      kernel_sizes: of the branches, integers.
      stride: an integer, or one per axis.
      dilations: of the branches; None is 1.
      ndim: spatial axes, 1 to 3.
      reduction, minimum: of the selection.
      use_bias: of the branches.
      dtype, param_dtype, kernel_init, precision, rngs: as in ``DynamicConv``.

    Attributes:
      weights, biases: lists, one entry a branch; no biases without ``use_bias``.
      squeeze, excite: of the selection, ``[C_out, Z]`` and ``[Z, M * C_out]``.

    Source: Li et al., "Selective Kernel Networks", CVPR 2019 (there with batch normalisation in
    branches and selection).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_sizes: Sequence[int] = (3, 5),
        stride: int | Sequence[int] = 1,
        *,
        dilations: Sequence[int] | None = None,
        ndim: int = 2,
        reduction: int = 16,
        minimum: int = 32,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.stride = per_axis(stride, ndim, "stride")
        self.dilations = None if dilations is None else tuple(dilations)
        self.dtype, self.precision = dtype, precision
        weights = []
        for size in kernel_sizes:
            drawn = kernel_init(rngs.params(), (size**ndim, in_channels, out_channels), param_dtype)
            weights.append(drawn.reshape(*(size,) * ndim, in_channels, out_channels))
        self.weights = nnx.List([nnx.Param(weight) for weight in weights])
        zeros = [jnp.zeros((out_channels,), param_dtype) for _ in weights if use_bias]
        self.biases = nnx.List([nnx.Param(bias) for bias in zeros])
        inner = max(out_channels // reduction, minimum)
        self.squeeze = nnx.Param(kernel_init(rngs.params(), (out_channels, inner), param_dtype))
        self.excite = nnx.Param(
            kernel_init(rngs.params(), (inner, len(weights) * out_channels), param_dtype)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, *outputs, C_out]``."""
        dtype = x.dtype if self.dtype is None else self.dtype
        squeeze, excite = (p[...].astype(dtype) for p in (self.squeeze, self.excite))

        exactly = precision_name(self.precision)

        def select(pooled: jax.Array) -> jax.Array:
            inner = jax.nn.relu(jnp.matmul(pooled, squeeze, precision=exactly))
            scores = jnp.matmul(inner, excite, precision=exactly)
            return scores.reshape(-1, len(self.weights), pooled.shape[-1])

        biases = [bias[...].astype(dtype) for bias in self.biases]
        return selective_conv(
            x.astype(dtype),
            [weight[...].astype(dtype) for weight in self.weights],
            select,
            biases=biases or None,
            stride=self.stride,
            dilations=self.dilations,
            precision=self.precision,
        )


class MixtureConv(nnx.Module):
    """:func:`voxax.nn.functional.mixture_conv`: a bank of kernels, and gates from pooled channels.

    The mean of the input over positions goes through a linear layer to
    ``max(in_channels // reduction, 4)`` and a ReLU, and from there to the shares and each gate.

    Args:
      in_channels, out_channels: C, C_out.
      kernel_size, stride, dilation: integers, or one per axis.
      ndim: spatial axes, 1 to 3.
      bank: M, number of kernels.
      routing: of the shares: ``"softmax"`` (dynamic convolution, ODConv), ``"sigmoid"`` (CondConv).
      gates: which others there are, sigmoids of ``"tap"``, ``"in"`` and ``"out"``; all three make
        it omni-dimensional (ODConv).
      temperature: the scores of the shares are divided by it.
      reduction: of the layer between.
      use_bias: whether each kernel has a bias, which is mixed.
      groups: of the weight.
      dtype, param_dtype, kernel_init, precision, rngs: as in ``DynamicConv``.

    Attributes:
      weight: ``[M, *T, C / groups, C_out]``; bias: ``[M, C_out]`` or None.
      reduce: ``[C, R]``; heads: linear layers from R to shares and gates, by name.
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
        bank: int = 4,
        routing: Literal["softmax", "sigmoid"] = "softmax",
        gates: Sequence[Gate] = (),
        temperature: float = 1.0,
        reduction: int = 4,
        use_bias: bool = True,
        groups: int = 1,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        if routing not in ("softmax", "sigmoid") or not set(gates) <= set(GATES):
            raise InputError(
                f"routing={routing!r}, gates={tuple(gates)}: expected softmax or sigmoid, and "
                f"gates among {', '.join(GATES)}"
            )
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.dilation = per_axis(dilation, ndim, "dilation")
        self.routing, self.temperature, self.groups = routing, float(temperature), groups
        self.dtype, self.precision = dtype, precision
        taps = math.prod(self.kernel_size)
        kernels = [
            kernel_init(rngs.params(), (taps, in_channels // groups, out_channels), param_dtype)
            for _ in range(bank)
        ]
        shape = (bank, *self.kernel_size, in_channels // groups, out_channels)
        self.weight = nnx.Param(jnp.stack(kernels).reshape(shape))
        self.bias = nnx.Param(jnp.zeros((bank, out_channels), param_dtype)) if use_bias else None
        inner = max(in_channels // reduction, 4)
        self.reduce = nnx.Param(kernel_init(rngs.params(), (in_channels, inner), param_dtype))
        extents = {"mixture": bank, "tap": taps, "in": in_channels, "out": out_channels}
        self.heads = nnx.Dict(
            {
                name: nnx.Param(kernel_init(rngs.params(), (inner, extents[name]), param_dtype))
                for name in ("mixture", *gates)
            }
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, *outputs, C_out]``."""
        dtype = x.dtype if self.dtype is None else self.dtype
        x = x.astype(dtype)
        pooled = jnp.mean(x, axis=tuple(range(1, x.ndim - 1)))
        inner = jnp.matmul(
            pooled, self.reduce[...].astype(dtype), precision=precision_name(self.precision)
        )
        inner = jax.nn.relu(inner)
        scores = {
            name: jnp.matmul(
                inner, head[...].astype(dtype), precision=precision_name(self.precision)
            )
            for name, head in self.heads.items()
        }
        shares = scores.pop("mixture") / self.temperature
        route = jax.nn.sigmoid if self.routing == "sigmoid" else jax.nn.softmax
        return mixture_conv(
            x,
            self.weight[...].astype(dtype),
            route(shares),
            **{f"{name}_gate": jax.nn.sigmoid(score) for name, score in scores.items()},
            bias=None if self.bias is None else self.bias[...].astype(dtype),
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            precision=self.precision,
        )
