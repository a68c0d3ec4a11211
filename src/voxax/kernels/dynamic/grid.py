"""Grids of a dynamic convolution: shapes, margins, and taps ordered by kernel size."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry import KernelSpec
from voxax.geometry.nested_sizes import reaching_size, taps_by_size, taps_within
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import Problem
from voxax.kernels.rows import multiplies


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The input and output grids of a dynamic convolution, and its K taps.

    Taps are sorted by the smallest kernel size that has them: size s has the first ``counts[s]``.

    Attributes:
      inputs, outputs: shapes ``(B, *spatial)`` of the grids.
      stride: stride along each axis.
      order: ``int[K]``, index in the weight of each of the sorted taps.
      taps: ``int[K, D]``, offset of each tap times the dilation.
      reach: ``int32[K]``, the smallest size that has the tap, ascending.
      counts: number of taps of each size, from size 0 to the largest.
      low, high: for each axis the number of zeros to pad before and after the input, so that every
        tap reads inside the padded input.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stride: tuple[int, ...]
    order: np.ndarray
    taps: np.ndarray
    reach: np.ndarray
    counts: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The largest useful kernel size: the smallest size that has every tap."""
        return len(self.counts) - 1

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape ``(B, *spatial)`` of the input with its zero margin."""
        sides = zip(self.inputs[1:], self.low, self.high, strict=True)
        return (self.inputs[0], *(n + a + b for n, a, b in sides))

    @property
    def positions(self) -> int:
        """The number of output positions of all scenes."""
        return math.prod(self.outputs)

    def pad(self, x: jax.Array) -> jax.Array:
        """Turn rows of input positions ``[N, ...]`` into a zero-padded grid ``[*padded, ...]``."""
        x = x.reshape(*self.inputs, *x.shape[1:])
        sides = [(0, 0), *zip(self.low, self.high, strict=True)]
        return jnp.pad(x, sides + [(0, 0)] * (x.ndim - len(sides)))

    def crop(self, x: jax.Array) -> jax.Array:
        """Return the input positions of a padded grid as rows ``[N, ...]``; undo :meth:`pad`."""
        inner = [slice(a, a + n) for a, n in zip(self.low, self.inputs[1:], strict=True)]
        x = x[(slice(None), *inner)]
        return x.reshape(math.prod(self.inputs), *x.shape[len(self.inputs) :])

    def base(self) -> jax.Array:
        """Return where each output position is centered in the padded input, ``int32[M]``.

        The numbers are row-major indices of positions in the grid of shape :attr:`padded`.
        """
        return rows_within(self.padded, self.outputs, self.low, self.stride)

    def shifts(self) -> np.ndarray:
        """Return the offset of each tap, ``int32[K]``, to add to the indices of :meth:`base`."""
        return (self.taps @ row_steps(self.padded)[1:]).astype(np.int32)


def row_steps(shape: tuple[int, ...]) -> np.ndarray:
    """Return the row-major strides of a shape, counted in elements."""
    return np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def rows_within(
    shape: tuple[int, ...],
    extents: tuple[int, ...],
    low: Sequence[int],
    stride: Sequence[int] | None = None,
) -> jax.Array:
    """Return for each position of an inner grid its index in an outer grid, ``int32[positions]``.

    The index is row-major, and so is the order of the inner grid's positions.

    Args:
      shape, extents: shapes ``(B, *spatial)`` of the outer and of the inner grid.
      low: for each spatial axis the index in the outer grid at which the inner grid begins.
      stride: distance in the outer grid between neighbors of the inner grid, by axis; None is 1.
    """
    # row = sum over axes of step * (low + stride * place)
    steps = row_steps(shape)
    apart = steps * (1, *(stride or (1,) * len(low)))
    rows = jnp.full((1,) * len(shape), int(steps[1:] @ np.asarray(low)), jnp.int32)
    for axis, (extent, step) in enumerate(zip(extents, apart, strict=True)):
        along = jnp.arange(extent, dtype=jnp.int32) * np.int32(step)
        rows = rows + along.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return rows.reshape(-1)


def grid_of(problem: Problem) -> Grid:
    """Return the :class:`Grid` (shapes and taps) of a dynamic problem; the result is cached."""
    return _grid(problem.layer.sizes.grid, problem.layer.spec)


@functools.lru_cache(maxsize=256)
def _grid(inputs: tuple[int, ...], spec: KernelSpec) -> Grid:
    order = taps_by_size(np.asarray(spec.offsets))
    offsets = np.asarray(spec.offsets)[order]
    taps = spec.dilated_offsets[order]
    outputs = output_grid(inputs, spec.stride)
    last = (np.asarray(outputs[1:]) - 1) * np.asarray(spec.stride)
    low = np.maximum(0, -taps.min(0))
    high = np.maximum(0, last + taps.max(0) - (np.asarray(inputs[1:]) - 1))
    return Grid(
        inputs,
        outputs,
        spec.stride,
        order,
        taps,
        reaching_size(offsets),
        tuple(int(n) for n in taps_within(offsets)),
        tuple(int(n) for n in low),
        tuple(int(n) for n in high),
    )


def output_grid(inputs: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the output shape ``(B, *ceil(spatial / stride))`` for inputs ``(B, *spatial)``."""
    return (inputs[0], *(-(-n // s) for n, s in zip(inputs[1:], stride, strict=True)))


def box_conv(
    x: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[tuple[int, int]] | None = None,
    **options: Any,
) -> jax.Array:
    """Convolve with the same box of taps at every position, by XLA's convolution.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes.
      weight: ``[*T, C, C_out]``, where T are the numbers of taps along the spatial axes; with
        ``feature_group_count`` G ``[*T, C / G, C_out]``.
      stride, dilation: one integer per axis.
      padding: number of zeros before and after each axis; None centers the box.
      options: other arguments of ``jax.lax.conv_general_dilated``.

    Returns:
      ``[B, *ceil(spatial / stride), C_out]``.
    """
    ndim, inputs = x.ndim - 2, x.shape[:-1]
    if padding is None:
        outputs = output_grid(inputs, tuple(stride))
        along = zip(inputs[1:], outputs[1:], weight.shape[:ndim], stride, dilation, strict=True)
        padding = [
            ((t - 1) // 2 * d, (m - 1) * s + t // 2 * d - (n - 1)) for n, m, t, s, d in along
        ]
    axes = "DHW"[-ndim:]
    return jax.lax.conv_general_dilated(
        x,
        weight,
        tuple(stride),
        padding,
        rhs_dilation=tuple(dilation),
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        **options,
    )


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why no strategy can run this dynamic problem, or None if one can."""
    if not jnp.issubdtype(jnp.dtype(problem.dtype), jnp.inexact):
        return multiplies(problem, hardware) or "multiplies floating-point features"
    if math.prod(grid_of(problem).padded) >= 2**31 - 1:
        shape = problem.layer.sizes.grid
        return f"counts positions with 32 bits, the grid {shape} with its margin has more"
    return None


def ordered(grid: Grid, w: jax.Array) -> jax.Array:
    """Sort the taps of a weight ``[K, C_in, C_out]`` by :attr:`Grid.order`."""
    return w[grid.order]


def unordered(grid: Grid, w: jax.Array) -> jax.Array:
    """Restore the original order of a weight's taps, the inverse of :func:`ordered`."""
    return w[np.argsort(grid.order)]


def tile_maximum(values: np.ndarray, side: int) -> np.ndarray:
    """Return ``values [B, *spatial]`` with each value replaced by the maximum of its tile.

    Tiles are cubes of ``side`` positions along each spatial axis, cut off at the end of the grid.
    """
    for axis in range(1, values.ndim):
        length = values.shape[axis]
        if length:
            most = np.maximum.reduceat(values, np.arange(0, length, side), axis=axis)
            values = np.repeat(most, side, axis=axis).take(np.arange(length), axis=axis)
    return values
