"""Integer lattice arithmetic: padding, coordinate range, kernel offsets, coarsening."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

PAD = np.int32(2**31 - 1)
"""Coordinate written in every column of a padding row. It sorts behind all valid rows."""

COORD_LIMIT = 2**30
"""Valid lattice coordinates lie in ``[-COORD_LIMIT, COORD_LIMIT)``.

Half the int32 range, so that ``coordinate * 1 + offset * dilation`` of any kernel
that fits in memory cannot wrap around and hit a wrong voxel.
"""


def axis_range(size: int, stride: int) -> range:
    """Offsets that a kernel of ``size`` covers along one axis.

    ``-((size - 1) // 2)`` to ``size // 2``; ``0`` to ``size - 1`` when ``stride == size``,
    the partition that down- and upsampling use.
    """
    low = 0 if stride == size else -((size - 1) // 2)
    return range(low, low + size)


def box_offsets(kernel_size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """All offsets of a box kernel, lexicographic, last axis fastest (dense kernel order)."""
    axes = [axis_range(k, s) for k, s in zip(kernel_size, stride, strict=True)]
    return tuple(itertools.product(*axes))


def cross_offsets(kernel_size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The offsets of the box that leave the center along one axis at most, in the same order."""
    box = box_offsets(kernel_size, stride)
    return tuple(offset for offset in box if sum(o != 0 for o in offset) <= 1)


@functools.lru_cache(maxsize=1024)  # asked in every eager call of a layer
def is_point_symmetric(offsets: tuple[tuple[int, ...], ...]) -> bool:
    """True where reversing the list negates every offset (as in centered boxes)."""
    array = np.asarray(offsets)
    return bool(np.array_equal(array[::-1], -array))


def coarsen(coords: jax.Array, stride: Sequence[int]) -> jax.Array:
    """``floor(coords / stride)`` on valid rows of ``int32[N, 1 + D]``; padding stays padding."""
    return jnp.where(coords[:, :1] == PAD, PAD, floor_divide(coords, (1, *stride)))


def in_range(coords: jax.Array) -> jax.Array:
    """``bool[...]``: which rows of ``int32[..., D]`` lie in the coordinate range on every axis."""
    return jnp.all((coords >= -COORD_LIMIT) & (coords < COORD_LIMIT), axis=-1)


def floor_divide(coords: jax.Array, divisor: Sequence[int]) -> jax.Array:
    """``floor(coords / divisor)`` of ``int32[..., len(divisor)]``; ``divisor`` is static, positive.

    Powers of two are shifts: TPUs have no integer division, and XLA writes one out for every
    register, which on rows of a batch took 15,000 instructions and up to 25 s to compile.
    """
    shape = (1,) * (coords.ndim - 1) + (-1,)
    if all(d & (d - 1) == 0 for d in divisor):
        # Of negative numbers too: an arithmetic shift rounds down.
        shift = jnp.asarray([d.bit_length() - 1 for d in divisor], jnp.int32)
        return jnp.right_shift(coords, shift.reshape(shape))
    return jnp.floor_divide(coords, jnp.asarray(divisor, jnp.int32).reshape(shape))
