"""The integer lattice: padding, coordinate range, kernel offsets. It needs no JAX."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

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
