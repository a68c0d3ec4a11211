"""A pool of memory blocks for the results of eager calls: later calls use freed blocks again.

Without the pool, the system provides large blocks page by page, clears each page when it is first
written to, and takes blocks back when they are freed. This takes a sixth of the time of a loop over
scans.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

_ALIGNED = 64  # bytes: JAX takes memory with this alignment without a copy
_SMALLEST = 2**17  # bytes of the smallest block that is kept
_LARGEST = 2**28  # bytes of all kept blocks together

_kept: list[np.ndarray] = []
_lock = threading.Lock()


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
