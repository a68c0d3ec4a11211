"""A kernel for every position and group of channels, given from outside."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.nn.functional.grid_taps import Shifted, check_shape, grid_spec, scan_taps, zeros_of


def local_conv(
    x: jax.Array,
    kernels: jax.Array,
    *,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> jax.Array:
    """Weighted sums of each position's neighbourhood, with weights of the position's own.

    ``y[u, c] = sum over k of kernels[u, k, group of c] * x[stride u + dilation o_k, c]``, zero
    outside of the grid: channels are not mixed. With kernels that a network computes from ``x``
    this is involution, with one group (or as many as channels) kernel prediction.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      kernels: ``[B, *outputs, K, G]``, G groups of C / G consecutive channels each; or
        ``[B, *outputs, K]``, one group. K in lexicographic order, outputs ``ceil(spatial /
        stride)``.
      kernel_size: an integer or one per axis; size s covers ``-((s - 1) // 2)`` to ``s // 2``.
      stride, dilation: static, an integer or one per axis.

    Returns:
      ``[B, *outputs, C]`` in the promoted dtype of both, summed in at least float32.
      Differentiable in both to any order. One tap after the other: memory does not grow with K.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: Li et al., "Involution: Inverting the Inherence of Convolution for Visual
    Recognition", CVPR 2021; Mildenhall et al., "Burst Denoising with Kernel Prediction
    Networks", CVPR 2018.
    """
    spec = grid_spec(x, kernel_size, stride, dilation)
    shifted = Shifted(x, spec)
    outputs, channels, taps = shifted.outputs, x.shape[-1], spec.num_offsets
    if kernels.shape == (*outputs, taps):
        kernels = kernels[..., None]
    groups = kernels.shape[-1] if kernels.ndim else 0
    check_shape("kernels", kernels, (*outputs, taps, groups))
    if groups < 1 or channels % groups:
        raise InputError(
            f"kernels of shape {tuple(kernels.shape)} have {groups} groups, which {channels} "
            "channels cannot be split into: give a divisor"
        )
    dtype = jnp.promote_types(x.dtype, kernels.dtype)
    wide = accumulator(dtype)

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, kernel = tap
        values = shifted.at(start).reshape(*outputs, groups, channels // groups).astype(wide)
        return total + values * kernel[..., None].astype(wide)

    total = zeros_of((*outputs, groups, channels // groups), wide, x, kernels)
    by_tap = (jnp.asarray(shifted.starts), jnp.moveaxis(kernels, -2, 0))
    return scan_taps(add, total, by_tap).reshape(*outputs, channels).astype(dtype)
