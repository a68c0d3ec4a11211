"""One kernel for each scene: a mixture of several, with gates along every axis of the weight."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.nn.functional.grid_conv import grid_conv
from voxax.nn.functional.grid_taps import check_shape, grid_spec
from voxax.products.convolve import precision_name


def mixture_conv(
    x: jax.Array,
    weight: jax.Array,
    mixture: jax.Array,
    *,
    tap_gate: jax.Array | None = None,
    in_gate: jax.Array | None = None,
    out_gate: jax.Array | None = None,
    bias: jax.Array | None = None,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Convolve each scene with its own mixture of M kernels, gated by tap and by channel.

    The kernel of scene b is ``sum over m of mixture[b, m] * tap_gate[k] * in_gate[c] *
    out_gate[o] * weight[m, k, c, o]``: the kernels are mixed, not their results, so the cost is
    that of one convolution. Shares from a sigmoid make it conditionally parameterised
    convolution (CondConv), from a softmax dynamic convolution, all four gates omni-dimensional
    dynamic convolution (ODConv). Shares by position: ``dynamic_conv(mixture=)``.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weight: ``[M, *T, C / groups, C_out]``; output channels group by group.
      mixture: ``[B, M]``, any numbers; ODConv's gate of kernels.
      tap_gate: ``[B, K]``, K in lexicographic order, or of each kernel ``[B, M, K]``.
      in_gate: ``[B, C]``, or ``[B, M, C]``.
      out_gate: ``[B, C_out]``, or ``[B, M, C_out]``.
      bias: ``[C_out]``, or ``[M, C_out]``, mixed as the kernels are; not gated.
      stride, dilation, groups: static.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *ceil(spatial / stride), C_out]`` in the promoted dtype of ``x`` and ``weight``.
      Differentiable in every array to any order. It holds B kernels.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: Yang et al., "CondConv: Conditionally Parameterized Convolutions for Efficient
    Inference", NeurIPS 2019; Chen et al., "Dynamic Convolution: Attention over Convolution
    Kernels", CVPR 2020; Li et al., "Omni-Dimensional Dynamic Convolution", ICLR 2022.
    """
    ndim, channels, scenes = x.ndim - 2, x.shape[-1], x.shape[0]
    fits = weight.ndim == ndim + 3 and groups >= 1 and weight.shape[-2] * groups == channels
    if not fits or weight.shape[-1] % groups:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for x of shape {tuple(x.shape)}, "
            f"groups={groups}: expected [M, *T, {channels} / groups, C_out] with {ndim} sizes T"
        )
    number, c_out, shape = weight.shape[0], weight.shape[-1], weight.shape[1:-2]
    taps = grid_spec(x, shape, stride, dilation).num_offsets
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    wide = accumulator(dtype)
    check_shape("mixture", mixture, (scenes, number))

    def gate(name: str, array: jax.Array | None, extent: int) -> jax.Array:
        """``[B, M or 1, extent]``."""
        if array is None:
            return jnp.ones((1, 1, extent), wide)
        check_shape(name, array, (scenes, extent), (scenes, number, extent))
        return array.astype(wide).reshape(scenes, -1, extent)

    by_group = (groups, channels // groups, c_out // groups)
    by_tap = gate("tap_gate", tap_gate, taps)[..., None, None, None]
    by_in = gate("in_gate", in_gate, channels)
    by_in = by_in.reshape(*by_in.shape[:2], 1, *by_group[:2], 1)
    by_out = gate("out_gate", out_gate, c_out)
    by_out = by_out.reshape(*by_out.shape[:2], 1, groups, 1, by_group[2])
    kernels = weight.astype(wide).reshape(number, taps, channels // groups, groups, by_group[2])
    kernels = jnp.moveaxis(kernels, -2, 2)

    shares = mixture.astype(wide)
    if all(part.shape[1] == 1 for part in (by_tap, by_in, by_out)):
        # Common gates act on the mixed kernel: the mixture is a product of matrices.
        flat = kernels.reshape(number, -1)
        mixed = jnp.matmul(shares, flat, precision=precision_name(precision))
        mixed = mixed.reshape(scenes, taps, *by_group)
        mixed = mixed * by_tap[:, 0] * by_in[:, 0] * by_out[:, 0]
    else:
        # One kernel after the other: all at once would hold M of them for each scene.
        mixed = jnp.zeros((scenes, taps, *by_group), wide)
        for m in range(number):
            part = shares[:, m].reshape(-1, 1, 1, 1, 1) * kernels[m][None]
            for factor in (by_tap, by_in, by_out):
                part = part * factor[:, m if factor.shape[1] > 1 else 0]
            mixed = mixed + part
    mixed = jnp.moveaxis(mixed, 2, -2).reshape(scenes, *shape, channels // groups, c_out)

    def scene(x: jax.Array, weight: jax.Array) -> jax.Array:
        options = {"stride": stride, "dilation": dilation, "groups": groups}
        return grid_conv(x[None], weight, **options, precision=precision)[0]

    y = jax.vmap(scene)(x.astype(dtype), mixed.astype(dtype))
    if bias is None:
        return y
    check_shape("bias", bias, (c_out,), (number, c_out))
    bias = bias.astype(wide)
    if bias.ndim == 2:
        bias = jnp.matmul(shares, bias, precision=precision_name(precision))
    bias = bias.reshape(-1, *(1,) * ndim, c_out)
    return (y.astype(wide) + bias).astype(dtype)
