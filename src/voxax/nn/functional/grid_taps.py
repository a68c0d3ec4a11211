"""Dense kernels tap by tap: the input under one tap of every output position at a time.

A loop over taps, each computed again in the backward pass: neither the program nor its memory grows
with the size of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.kernel_spec import per_axis
from voxax.products.convolve import output_grid, sized_spec

_MOST_AXES = 3


def grid_spec(
    x: Any,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
) -> KernelSpec:
    """The relation of a kernel on the grid of ``x [B, *spatial, C]``; sizes are centred.

    Raises:
      InputError: not one to three spatial axes, no floats, kernel arguments that do not fit.
    """
    ndim = x.ndim - 2
    if not 1 <= ndim <= _MOST_AXES:
        raise InputError(f"x of shape {x.shape}: expected [B, *spatial, C], 1 to 3 spatial axes")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"x of {x.dtype}: expected floats")
    shape, steps, spread = (
        per_axis(value, ndim, name)
        for value, name in (
            (kernel_size, "kernel_size"),
            (stride, "stride"),
            (dilation, "dilation"),
        )
    )
    return sized_spec(shape, steps, spread)


def margins(grid: Sequence[int], spec: KernelSpec) -> list[tuple[int, int]]:
    """Zeros in front of and behind each axis of the grid ``(B, *spatial)``, so that every tap of
    every output lies inside."""
    taps = np.asarray(spec.dilated_offsets)
    outputs = output_grid(tuple(grid), spec.stride)
    last = (np.asarray(outputs[1:]) - 1) * np.asarray(spec.stride)
    low = np.maximum(0, -taps.min(axis=0))
    high = np.maximum(0, last + 1 + taps.max(axis=0) - np.asarray(grid[1:]))
    return list(zip(low.tolist(), high.tolist(), strict=True))


class Shifted:
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
        sides = margins(x.shape[:-1], spec)
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


def scan_taps(add: Callable[[Any, Any], Any], total: Any, by_tap: Any) -> Any:
    """``total`` after ``add(total, one entry of by_tap)`` for each tap.

    Args:
      add: what one tap adds.
      total: a tree of arrays; the first value.
      by_tap: a tree of arrays ``[K, ...]``.
    """

    def step(total: Any, entry: Any) -> tuple[Any, None]:
        return add(total, entry), None

    return jax.lax.scan(jax.checkpoint(step), total, by_tap)[0]


def zeros_of(shape: Sequence[int], dtype: Any, *operands: jax.Array) -> jax.Array:
    """Zeros that vary over a mesh as the operands do: a sum of no rows of each is added."""
    total = jnp.zeros(shape, dtype)
    for operand in operands:
        total = total + jnp.sum(operand[:0]).astype(dtype)
    return total


def check_shape(name: str, array: Any, *expected: tuple[int, ...]) -> None:
    """Raise :class:`InputError` unless the array has floats and one of the shapes."""
    if array.shape not in expected:
        shapes = " or ".join(str(list(shape)) for shape in expected)
        raise InputError(f"{name} of shape {tuple(array.shape)}: expected {shapes}")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(f"{name} of {array.dtype}: expected floats")
