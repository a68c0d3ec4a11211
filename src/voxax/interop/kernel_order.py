"""In which order a library counts the taps of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxax.errors import InputError
from voxax.geometry import KernelSpec


def check_axes(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The peer's axis for each of our axes; None is the same order.

    Raises:
      InputError: not a permutation of ``0`` to ``ndim - 1``.
    """
    given = tuple(range(ndim)) if axes is None else tuple(axes)
    if sorted(given) != list(range(ndim)):
        raise InputError(
            f"axes={given} must name each of the {ndim} spatial axes once: the peer's axis for "
            f"each axis of the model, {tuple(reversed(range(ndim)))} where one has x, y, z and "
            "the other z, y, x"
        )
    return given


def peer_offsets(spec: KernelSpec, axes: tuple[int, ...]) -> np.ndarray:
    """``int[K, D]``: our offsets, in our tap order, with the axes in the peer's order."""
    return np.asarray(spec.offsets)[:, np.argsort(axes)]


def grid_size(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Distinct offsets along each axis, where they are all of a grid's; None where some lack."""
    size = [len(set(column)) for column in offsets.T.tolist()]
    return tuple(size) if np.prod(size) == len(offsets) else None


def grid_steps(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Distance of neighbouring offsets along each axis, 1 along an axis with one offset only;
    None where distances along an axis differ."""
    steps = [set(np.diff(np.unique(column)).tolist()) for column in offsets.T]
    return tuple(next(iter(s), 1) for s in steps) if all(len(s) < 2 for s in steps) else None


def last_axis_fastest(offsets: np.ndarray) -> np.ndarray:
    """``int[K]``: at place i, the number of the tap that is i-th in lexicographic order."""
    return np.lexsort(offsets.T[::-1])


def places_of(offsets: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """``int[K]``: at place i, the number of the tap with offset ``wanted[i]``; None unless both
    are the same set."""
    number = {tuple(row): i for i, row in enumerate(offsets.tolist())}
    rows = [tuple(row) for row in wanted.tolist()]
    return np.asarray([number[r] for r in rows]) if set(rows) == set(number) else None


def named_ranges(offsets: np.ndarray) -> str:
    """``-1..1 x 0..1``, for messages."""
    ends = zip(offsets.min(0), offsets.max(0), strict=True)
    return " x ".join(f"{low}..{high}" for low, high in ends)
