"""Memory used so far."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import jax


def peak_memory() -> dict[str, int]:
    """Peak bytes: ``host`` of this process, ``device`` where the runtime counts it."""
    peaks = {}
    host = _high_water_mark() or _maximum_resident_size()
    if host is not None:
        peaks["host"] = host
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        peaks["device"] = stats["peak_bytes_in_use"]
    return peaks


def _high_water_mark() -> int | None:
    """Linux's ``VmHWM``, which starts anew with each program."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _maximum_resident_size() -> int | None:
    """``getrusage``, for other systems. Linux's figure survives ``exec``: a small program started
    by a large one is told the large one's peak."""
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return None
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def process_memory() -> int | None:
    """Bytes of memory that this process holds now; None if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        process: Any = importlib.import_module("psutil").Process()
        return process.memory_info().rss
    except Exception:
        return None
