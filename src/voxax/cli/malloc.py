"""Process-wide memory settings of the command line (a library must not touch them)."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_heap() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the system.

    XLA on a CPU allocates its buffers anew in every call. Above 32 MB glibc maps and unmaps
    them each time, and clearing the fresh pages costs more than the arithmetic: a training
    step of the demo takes about 1.2 times as long (2 cores of an AMD EPYC, shared).

    Returns:
      Whether the settings were made; False where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_ARENA_MAX, 1))
    made = [mallopt(option, value) == 1 for option, value in settings]
    return all(made)
