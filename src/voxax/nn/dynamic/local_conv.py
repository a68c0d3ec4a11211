"""A kernel for every position and group of channels, given from outside."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms.dynamic.grid import output_grid
from voxax.algorithms.rows import zeros
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import accumulator
from voxax.nn.arguments import check_shape
from voxax.nn.dynamic.grid_taps import grid_spec, scan_taps


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
    shifted = _Shifted(x, spec)
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

    total = zeros((*outputs, groups, channels // groups), wide, x, kernels)
    by_tap = (jnp.asarray(shifted.starts), jnp.moveaxis(kernels, -2, 0))
    return scan_taps(add, total, by_tap).reshape(*outputs, channels).astype(dtype)


class _Shifted:
    """Reads ``x [B, *spatial, C]`` under one tap: zero outside of the grid, padded once.

    Attributes:
      starts: ``int32[K, D]``, one row a tap, what :meth:`at` takes.
      outputs: ``(B, *outputs)``.
    """

    def __init__(self, x: jax.Array, spec: KernelSpec):
        taps = np.asarray(spec.dilated_offsets)
        self.outputs = output_grid(x.shape[:-1], spec.stride)
        self.stride = spec.stride
        self.extents = [
            max((n - 1) * s + 1, 0) for n, s in zip(self.outputs[1:], spec.stride, strict=True)
        ]
        sides = _margins(x.shape[:-1], spec)
        self.padded = jnp.pad(x, ((0, 0), *sides, (0, 0)))
        self.starts = (taps + np.asarray([low for low, _ in sides])).astype(np.int32)

    def at(self, start: jax.Array) -> jax.Array:
        """``[B, *outputs, C]`` under the tap whose row of ``starts`` is given."""
        padded = self.padded
        zero = jnp.zeros((), jnp.int32)
        corner = [zero, *(start[axis] for axis in range(len(self.extents))), zero]
        sizes = (padded.shape[0], *self.extents, padded.shape[-1])
        values = jax.lax.dynamic_slice(padded, corner, sizes)
        steps = (1, *self.stride, 1)
        return jax.lax.slice(values, (0,) * values.ndim, values.shape, steps)


def _margins(grid: Sequence[int], spec: KernelSpec) -> list[tuple[int, int]]:
    """Zeros in front of and behind each axis of the grid ``(B, *spatial)``, so that every tap of
    every output lies inside."""
    taps = np.asarray(spec.dilated_offsets)
    outputs = output_grid(tuple(grid), spec.stride)
    last = (np.asarray(outputs[1:]) - 1) * np.asarray(spec.stride)
    low = np.maximum(0, -taps.min(axis=0))
    high = np.maximum(0, last + 1 + taps.max(axis=0) - np.asarray(grid[1:]))
    return list(zip(low.tolist(), high.tolist(), strict=True))
