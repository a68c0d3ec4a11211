"""Native functions on voxel coordinates for NumPy arrays, which need neither JAX nor a device.

They are called through ctypes, which releases the GIL. They run on the calling thread unless their
argument `threads` is larger than 1, so they work in any number of forked processes.

Their results are in blocks of memory that later calls use again once they are free. Otherwise the
system would provide large blocks page by page, clear each page when it is first written to, and
take blocks back when they are freed. That takes a sixth of the time of a loop over scans.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax._native import library

_INT32_MAX = 2**31 - 1
_ALIGNED = 64  # bytes: JAX takes memory with this alignment without a copy
_SMALLEST = 2**17  # bytes of the smallest block that is kept
_LARGEST = 2**28  # bytes of all kept blocks together

_kept: list[np.ndarray] = []
_lock = threading.Lock()


class BadRowError(ValueError):
    """A kernel map contains row numbers of rows that do not exist."""


def available() -> bool:
    """Return whether this process can call the native library."""
    return library()[0] is not None


def takes_rows(rows: np.ndarray) -> bool:
    """Return whether :func:`unique_rows` is available and supports `rows`.

    It supports ``int32[N, W]`` with W from 1 to 5.
    """
    return available() and rows.dtype == np.int32 and rows.ndim == 2 and 1 <= rows.shape[1] <= 5


def unique_rows(rows: np.ndarray, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Sort the rows of ``int32[N, W]`` lexicographically, and remove duplicates.

    The library uses at most `threads` threads.

    Returns:
      ``(unique int32[M, W], inverse int32[N])``; ``unique[inverse]`` are the given rows.
    """
    rows = np.ascontiguousarray(rows)
    unique = np.empty_like(rows)
    inverse = empty_array((len(rows),), np.int32)
    count = call("unique_rows", rows, *rows.shape, threads, unique, inverse)
    return unique[:count].copy(), inverse


def takes_offsets(sorted_rows: np.ndarray, centers: np.ndarray, offsets: np.ndarray) -> bool:
    """Return whether :func:`find_neighbors` is available and supports these arguments.

    It supports integers in 1 to 4 axes, with offsets below ``2**30``.
    """
    return (
        available()
        and sorted_rows.dtype == np.int32
        and 2 <= sorted_rows.shape[1] <= 5
        and np.issubdtype(centers.dtype, np.integer)
        and bool(np.abs(offsets).max(initial=0) < 2**30)
    )


def find_neighbors(
    sorted_rows: np.ndarray,
    centers: np.ndarray,
    offsets: np.ndarray,
    rows: int,
    threads: int = 1,
) -> np.ndarray:
    """Return ``int32[rows, K]``, the index in `sorted_rows` of each center plus offset, or -1.

    Args:
      sorted_rows: ``int32[N, 1 + D]``, batch index and coordinates, in lexicographic order.
      centers: ``int[M, 1 + D]``.
      offsets: ``int[K, D]`` in lexicographic order.
      rows: number of rows of the result, M or more. Rows from M on are -1.
      threads: the largest number of threads.

    Raises:
      ValueError: the shapes of the arrays do not match, or `rows` is less than the number of
        centers.
    """
    width = sorted_rows.shape[1]
    if centers.shape[1:] != (width,) or offsets.shape[1:] != (width - 1,) or rows < len(centers):
        raise ValueError(
            f"{rows} rows for centers {centers.shape}, offsets {offsets.shape} and sorted rows "
            f"{sorted_rows.shape}: they are [M, 1 + D], [K, D] and [N, 1 + D], for M rows or more"
        )
    # Beyond 32 bits there are no voxels.
    valid = None
    if centers.min(initial=0) < -_INT32_MAX - 1 or centers.max(initial=0) > _INT32_MAX:
        valid = np.all((centers >= -_INT32_MAX - 1) & (centers <= _INT32_MAX), axis=1)
        centers = np.where(valid[:, None], centers, 0)
    sorted_rows = np.ascontiguousarray(sorted_rows)
    centers = np.ascontiguousarray(centers, np.int32)
    offsets = np.ascontiguousarray(offsets, np.int32)
    found = empty_array((rows, len(offsets)), np.int32)
    found[len(centers) :] = -1
    sizes = len(offsets), centers.shape[1]
    table = sorted_rows, len(sorted_rows)
    call("find_neighbors", *table, centers, valid, len(centers), offsets, *sizes, threads, found)
    return found


def takes_table(neighbors: np.ndarray) -> bool:
    """Return whether :func:`invert_table` and :func:`list_pairs` are available for this table.

    They support tables `neighbors` of ``int32[rows, K]``.
    """
    return available() and neighbors.dtype == np.int32 and neighbors.ndim == 2


def invert_table(neighbors: np.ndarray, in_rows: int, threads: int = 1) -> np.ndarray:
    """Return ``int32[in_rows, K]``, the output row that reads each input row at each of K taps.

    `neighbors` is the table of the opposite direction: ``int32[rows, K]``, the input row that each
    output row reads at each tap. -1 means "none" in both tables.
    """
    neighbors = np.ascontiguousarray(neighbors)
    found = empty_array((in_rows, neighbors.shape[1]), np.int32)
    call("invert_table", neighbors, *neighbors.shape, in_rows, threads, found)
    return found


def list_pairs(neighbors: np.ndarray, places: int) -> tuple[np.ndarray, np.ndarray]:
    """List the pairs of input and output rows of a kernel map, tap by tap.

    `neighbors` is ``int32[rows, K]``, the input row of each output row at each of K taps, or -1.
    The result has space for `places` pairs, which must be at least ``rows * K``.

    Returns:
      ``(pairs int32[2, places], starts int32[K + 1])``. ``pairs[0]`` has the input rows and
      ``pairs[1]`` the output rows, ordered by tap and output row, with -1 after the last pair.
      `starts` has the position of each tap's first pair, then the number of pairs.
    """
    neighbors = np.ascontiguousarray(neighbors)
    pairs = empty_array((2, places), np.int32)
    starts = np.empty(neighbors.shape[1] + 1, np.int32)
    call("list_pairs", neighbors, *neighbors.shape, places, 1, pairs, starts)
    return pairs, starts


def takes_positions(local: np.ndarray) -> bool:
    """Return whether :func:`find_cells` is available and supports the positions `local`.

    It supports floats, ``[N, D]`` with D from 1 to 4, in float32 or float64.
    """
    known = local.dtype == np.float32 or local.dtype == np.float64
    return available() and known and 1 <= local.shape[1] <= 4


def find_cells(
    local: np.ndarray, scale: Any, inverse: Any, edge: Any, size: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell of each position at stride 1, and whether the position has a cell.

    Args:
      local: ``float[N, D]``, positions relative to the lattice's origin.
      scale, inverse, edge, size: attributes of a :class:`voxax.geometry.cells.Lattice`.

    Returns:
      ``(int32[N, D], bool[N])``, as :func:`voxax.geometry.cells.cells` returns them.

    Raises:
      ValueError: the lattice and the positions differ in their number of axes.
    """
    rows, axes = local.shape
    lattice = [
        np.ascontiguousarray(values, dtype)
        for values, dtype in zip(
            (scale, inverse, edge, size),
            (np.float32, np.float32, np.int32, local.dtype),
            strict=True,
        )
    ]
    if any(values.shape != (axes,) for values in lattice):
        shapes = [values.shape for values in lattice]
        raise ValueError(f"a lattice of shapes {shapes} for positions in {axes} axes")
    cell = np.empty((rows, axes), np.int32)
    known = np.empty(rows, bool)
    wide = int(local.dtype == np.float64)
    call("find_cells", np.ascontiguousarray(local), wide, rows, axes, *lattice, cell, known)
    return cell, known


def call(name: str, *arguments: Any) -> int:
    """Call the library's function ``voxax_host_<name>``, and return its integer result.

    Args:
      name: the name of the native function, without the prefix ``voxax_host_``.
      arguments: C-contiguous arrays, integers, and None for a null pointer.

    Raises:
      RuntimeError: the native library is not available.
      MemoryError: the function could not allocate memory.
      BadRowError: a kernel map contains row numbers of rows that do not exist.
      ValueError: the function does not support arrays of these shapes.
    """
    found, reason = library()
    if found is None:
        raise RuntimeError(reason)
    function = getattr(found, f"voxax_host_{name}")
    function.restype = ctypes.c_int64
    result = function(*map(_argument, arguments))
    if result == -1:
        raise MemoryError(f"no memory left in the native {name}")
    if result == -3:
        raise BadRowError(f"the native {name} got a kernel map that names rows that do not exist")
    if result < 0:
        shapes = [value.shape for value in arguments if isinstance(value, np.ndarray)]
        raise ValueError(
            f"the native {name} does not take arrays of the shapes {shapes}: rows have 1 to 5 "
            "columns, and rows and pairs are numbered in 32 bits"
        )
    return result


def _argument(value: np.ndarray | int | None) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return None if value is None else ctypes.c_int64(value)


def empty_array(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return an uninitialized NumPy array, in memory that JAX can use without a copy.

    Its memory is reused when nothing refers to the array or to views of it any more.
    """
    dtype = np.dtype(dtype)
    size = math.prod(map(int, shape)) * dtype.itemsize
    with _lock:
        memory = _memory(size + _ALIGNED)
        start = -memory.ctypes.data % _ALIGNED
        # The view is made under the lock, so it refers to the memory before another thread checks.
        return memory[start : start + size].view(dtype).reshape(shape)


def _memory(size: int) -> np.ndarray:
    if not _SMALLEST <= size <= _LARGEST // 4:
        return np.empty(size, np.uint8)
    unused = [i for i in range(len(_kept)) if _references(_kept, i) == _UNUSED]
    fitting = [i for i in unused if size <= len(_kept[i]) <= 2 * size]
    if fitting:
        return _kept[min(fitting, key=lambda i: len(_kept[i]))]
    made = np.empty(size + size // 4, np.uint8)
    held = sum(map(len, _kept))
    for i in reversed(unused):
        if held + len(made) > _LARGEST:
            held -= len(_kept.pop(i))
    if held + len(made) <= _LARGEST:
        _kept.append(made)
    return made


def _references(arrays: list[np.ndarray], i: int) -> int:
    return sys.getrefcount(arrays[i])


# The count of references to an array that only the list refers to.
_UNUSED = _references([np.empty(0)], 0)


def _forget() -> None:
    """Empty the pool of reusable memory and create a new lock for it, in a forked process.

    No thread of the forked process could release the old lock.
    """
    global _lock
    _lock = threading.Lock()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
