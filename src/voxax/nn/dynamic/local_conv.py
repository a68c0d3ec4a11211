"""Convolve with a given kernel for every position and group of channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Float
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.kernels.dynamic.grid import output_grid
from voxax.kernels.rows import zeros
from voxax.nn.arguments import check_shape
from voxax.nn.dynamic.grid_taps import grid_spec, scan_taps


@checked_operator
def local_conv(
    x: Float[Array, "B *spatial C"],
    kernels: Float[Array, "B *outputs K G"] | Float[Array, "B *outputs K"],
    *,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Float[Array, "B ... C"]:
    """Sum the neighborhood of each position with weights of its own.

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
    starts, read = _under_taps(x, spec)
    outputs, channels = output_grid(x.shape[:-1], spec.stride), x.shape[-1]
    taps = spec.num_offsets
    if kernels.shape == (*outputs, taps):
        kernels = kernels[..., None]
    groups = kernels.shape[-1] if kernels.ndim else 0
    check_shape("kernels", kernels, (*outputs, taps, groups))
    if groups < 1 or channels % groups:
        raise InputError(
            f"kernels of shape {tuple(kernels.shape)} have {groups} groups, which {channels} "
            "channels cannot be split into: give a divisor"
        )
    dtype = common_dtype(x.dtype, kernels.dtype)
    wide = accumulator(dtype)

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, kernel = tap
        values = read(start).reshape(*outputs, groups, channels // groups).astype(wide)
        return total + values * kernel[..., None].astype(wide)

    total = zeros((*outputs, groups, channels // groups), wide, x, kernels)
    by_tap = (jnp.asarray(starts), jnp.moveaxis(kernels, -2, 0))
    return scan_taps(add, total, by_tap).reshape(*outputs, channels).astype(dtype)


def _under_taps(
    x: jax.Array, spec: KernelSpec
) -> tuple[np.ndarray, Callable[[jax.Array], jax.Array]]:
    """Pad ``x [B, *spatial, C]`` once, to read it under one tap at a time.

    Returns:
      ``int32[K, D]``, one row a tap, and a function from such a row to ``[B, *outputs, C]``, zero
      outside of the grid.
    """
    taps, steps = np.asarray(spec.dilated_offsets), np.asarray(spec.stride)
    last = (np.asarray(output_grid(x.shape[:-1], spec.stride)[1:]) - 1) * steps
    low = np.maximum(0, -taps.min(axis=0))
    high = np.maximum(0, last + 1 + taps.max(axis=0) - np.asarray(x.shape[1:-1]))
    padded = jnp.pad(x, ((0, 0), *zip(low.tolist(), high.tolist(), strict=True), (0, 0)))
    sizes = (x.shape[0], *np.maximum(last + 1, 0).tolist(), x.shape[-1])

    def read(start: jax.Array) -> jax.Array:
        zero = jnp.zeros((), jnp.int32)
        corner = [zero, *(start[axis] for axis in range(len(steps))), zero]
        values = jax.lax.dynamic_slice(padded, corner, sizes)
        return jax.lax.slice(values, (0,) * values.ndim, values.shape, (1, *spec.stride, 1))

    return (taps + low).astype(np.int32), read
