"""Constants and kernel offsets of the integer lattice; this module does not import JAX."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

PAD = np.int32(2**31 - 1)
"""The value in every column of a padding row. Padding rows sort after all valid rows."""

COORD_LIMIT = 2**30
"""Valid lattice coordinates are in ``[-COORD_LIMIT, COORD_LIMIT)``.

This is half the int32 range, so that ``coordinate + offset * dilation`` of a kernel cannot wrap
around and find a wrong voxel.
"""


def axis_range(size: int, stride: int) -> range:
    """Return the offsets of a kernel of ``size`` along one axis.

    They are ``-((size - 1) // 2)`` to ``size // 2``. If ``stride == size``, as in down- and
    upsampling, they are ``0`` to ``size - 1``, so that each input site is in one output's kernel.
    """
    low = 0 if stride == size else -((size - 1) // 2)
    return range(low, low + size)


def box_offsets(kernel_size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return all offsets of a box kernel in lexicographic order, last axis fastest.

    The taps of dense weights have the same order. Along each axis, the offsets are those of
    :func:`axis_range`.
    """
    axes = [axis_range(k, s) for k, s in zip(kernel_size, stride, strict=True)]
    return tuple(itertools.product(*axes))


def cross_offsets(kernel_size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return those :func:`box_offsets`, in order, that are nonzero along at most one axis."""
    box = box_offsets(kernel_size, stride)
    return tuple(offset for offset in box if sum(o != 0 for o in offset) <= 1)


@functools.lru_cache(maxsize=1024)  # called in every eager call of a layer
def is_point_symmetric(offsets: tuple[tuple[int, ...], ...]) -> bool:
    """Return whether reversing the list negates every offset, as for centered boxes."""
    array = np.asarray(offsets)
    return bool(np.array_equal(array[::-1], -array))
