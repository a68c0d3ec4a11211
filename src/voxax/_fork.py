"""Detection of forked processes, in which JAX would wait forever for threads of the parent."""

from __future__ import annotations

import os
import sys
import threading

from voxax import _compat, _own_process
from voxax.errors import VoxaxError

# ID of the process that imported voxax, or of the fork of that process that was checked last.
_own = _own_process.PID
_broken = False
_watching = False


def check_process() -> None:
    """Raise :class:`voxax.VoxaxError` if this process was forked from one that had used JAX.

    Call this function before an eager operation uses JAX. Its first call also registers a function
    that runs in every later fork and notes whether the parent had used JAX.
    """
    global _own, _watching
    if not _watching:
        _watching = True
        os.register_at_fork(after_in_child=_in_child)
    if os.getpid() != _own:
        # The fork was before the first call; its parent may have used JAX without voxax.
        if _compat.is_begun() and _has_lost_threads():
            _in_child()
        _own = os.getpid()
    if _broken:
        raise VoxaxError(
            "this process was forked from one that had used JAX, whose threads it has not: JAX "
            'would wait for ever. Start workers by multiprocessing.get_context("spawn"), of a '
            'PyTorch DataLoader by multiprocessing_context="spawn"; or make voxels with '
            "vx.voxelize_on_host, which needs no JAX"
        )


def _in_child() -> None:
    global _own, _broken
    _own = os.getpid()
    _broken = _broken or _compat.is_begun()


def _has_lost_threads() -> bool:
    """Return whether a forked process lacks JAX's threads, because a fork does not copy threads.

    On Linux, the result is True if the process has no more threads than Python has started. On
    other systems, it is always True.
    """
    if not sys.platform.startswith("linux"):
        return True
    try:
        return len(os.listdir("/proc/self/task")) <= threading.active_count()
    except OSError:
        return False
