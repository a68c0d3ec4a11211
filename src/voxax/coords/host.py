"""Coordinate functions in NumPy, for worker processes that must not use a device.

The native library is used if it is present. The NumPy code was written independently of it and
of the JAX versions (one 64-bit key per row instead of a lexicographic search), so tests compare
all three.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from voxax._native import host as native
from voxax.coords.lattice import PAD


class RowKeys:
    """A function from integer rows to int64 keys, whose order is that of the rows.

    Rows have a key if they are inside a box: the bounding box of the rows that the function is made
    from, plus a margin. If the box has ``2**62`` cells or more, the attribute ``fits`` is False,
    and there are no keys.

    Args:
      rows: ``int[N, W]``, the rows that determine the box.
      margin: number of cells by which the box is enlarged on every side.
    """

    def __init__(self, rows: np.ndarray, margin: int = 0) -> None:
        if len(rows):
            low = rows.min(0).astype(np.int64) - margin
            high = rows.max(0).astype(np.int64) + margin
        else:
            low = np.zeros(rows.shape[1], np.int64)
            high = low
        self.low, self.high = low, high
        extents = [int(v) for v in high - low + 1]
        radix = [1]
        for extent in reversed(extents[1:]):
            radix.insert(0, radix[0] * extent)
        self.fits = radix[0] * extents[0] < 2**62
        self.radix = np.asarray(radix if self.fits else [0] * len(radix), np.int64)

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(keys int64[N], inside bool[N])`` for ``rows``, ``int[N, W]``.

        Keys have the order of the rows. ``inside`` tells which rows are in the box; keys of other
        rows have no meaning.
        """
        rows = rows.astype(np.int64)
        inside = np.all((rows >= self.low) & (rows <= self.high), axis=1)
        return (rows - self.low) @ self.radix, inside


def _compress(*lists: np.ndarray, reach: int) -> list[np.ndarray]:
    """Return the lists of rows with large gaps between coordinates shortened, so that keys fit.

    Each of ``lists`` is ``int[n, W]``; :class:`RowKeys` has no keys for a very large range. On
    every axis, the distinct coordinates of all lists are sorted, and differences of consecutive
    ones are limited to ``reach + 1``. So differences up to ``reach`` stay the same, and larger ones
    stay larger than ``reach``. A search for neighbors with offsets up to ``reach`` then gives the
    same results.
    """
    outputs = [np.empty(rows.shape, np.int64) for rows in lists]
    for axis in range(lists[0].shape[1]):
        values = np.unique(np.concatenate([rows[:, axis] for rows in lists]).astype(np.int64))
        gaps = np.minimum(np.diff(values), reach + 1)
        squeezed = np.concatenate([[0], np.cumsum(gaps)])
        for rows, out in zip(lists, outputs, strict=True):
            out[:, axis] = squeezed[np.searchsorted(values, rows[:, axis])]
    return outputs


def unique_rows(rows: np.ndarray, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows in lexicographic order, and the index of each row among them.

    Args:
      rows: ``int32[N, W]`` without padding.
      threads: the largest number of threads of the native library.

    Returns:
      ``(unique int32[M, W], inverse int32[N])``.
    """
    if native.takes_rows(rows):
        return native.unique_rows(rows, threads)
    keys = RowKeys(rows)
    if not keys.fits:
        unique, inverse = np.unique(rows, axis=0, return_inverse=True)
        return unique.astype(np.int32), inverse.reshape(-1).astype(np.int32)
    _, first, inverse = np.unique(keys(rows)[0], return_index=True, return_inverse=True)
    return rows[first].astype(np.int32), inverse.reshape(-1).astype(np.int32)


def find_neighbors(
    sorted_rows: np.ndarray,
    centers: np.ndarray,
    offsets: np.ndarray,
    rows: int | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Return ``int32[rows, K]``, the index in ``sorted_rows`` of each center plus offset, or -1.

    Args:
      sorted_rows: ``int32[N, 1 + D]`` in lexicographic order, without padding.
      centers: ``int32[M, 1 + D]``, without padding.
      offsets: ``int[K, D]`` in lexicographic order.
      rows: number of rows of the result, M or more; None is M. Rows from M on are -1.
      threads: the largest number of threads of the native library.
    """
    rows = len(centers) if rows is None else rows
    if native.takes_offsets(sorted_rows, centers, offsets):
        return native.find_neighbors(sorted_rows, centers, offsets, rows, threads)
    found = np.full((rows, len(offsets)), -1, np.int32)
    found[: len(centers)] = _find_neighbors(sorted_rows, centers, offsets)
    return found


def _find_neighbors(
    sorted_rows: np.ndarray, centers: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    found = np.full((len(centers), len(offsets)), -1, np.int32)
    if not len(sorted_rows) or not len(centers):
        return found
    reach = int(np.abs(offsets).max(initial=0))
    keys = RowKeys(sorted_rows, margin=reach)
    if not keys.fits:
        sorted_rows, centers = _compress(sorted_rows, centers, reach=reach)
        keys = RowKeys(sorted_rows, margin=reach)
        if not keys.fits:
            return _find_neighbors_by_dictionary(sorted_rows, centers, offsets)
    table, _ = keys(sorted_rows)
    last = len(table) - 1
    for _, group in itertools.groupby(range(len(offsets)), lambda k: tuple(offsets[k][:-1])):
        position = previous = None
        for k in group:
            query, inside = keys(centers + np.asarray([0, *offsets[k]]))
            if position is None or offsets[k][-1] - previous != 1:
                position = np.searchsorted(table, query)
            hit = table[np.minimum(position, last)] == query
            hit &= inside & (position <= last)
            found[:, k] = np.where(hit, position, -1)
            # The next lattice step along the last axis is at the same position if there was no
            # hit, else right after it. Centers outside the box need a new search.
            position, previous = position + hit, offsets[k][-1]
            if not inside.all():
                position = None
    return found


def _find_neighbors_by_dictionary(
    sorted_rows: np.ndarray, centers: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """Return the first M rows of :func:`find_neighbors`, slowly but for any coordinates.

    There are M ``centers``.
    """
    table = {tuple(row): i for i, row in enumerate(sorted_rows.tolist())}
    steps = [(0, *map(int, offset)) for offset in offsets]
    found = [
        [table.get(tuple(c + s for c, s in zip(center, step, strict=True)), -1) for step in steps]
        for center in centers.tolist()
    ]
    return np.asarray(found, np.int32).reshape(len(centers), len(offsets))


def coarsen(rows: np.ndarray, stride: Sequence[int]) -> np.ndarray:
    """Return ``floor(rows / stride)`` for coordinates ``int32[N, 1 + D]`` without padding.

    The batch index, which is the first column, stays.
    """
    step = np.asarray([1, *stride], np.int32)
    return np.floor_divide(rows, step, out=native.empty_array(rows.shape, rows.dtype))


def pad_rows(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return ``int32[capacity, W]``: all ``rows`` that there is room for, then padding rows."""
    out, count = native.empty_array((capacity, rows.shape[1]), np.int32), min(len(rows), capacity)
    out[:count], out[count:] = rows[:capacity], PAD
    return out
