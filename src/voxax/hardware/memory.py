"""Memory used so far."""

from __future__ import annotations

import sys

import jax


def peak_memory() -> dict[str, int]:
    """Peak bytes: ``host`` of this process, ``device`` where the runtime counts it."""
    peaks = {}
    try:
        import resource

        # Kilobytes on Linux, bytes on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        peaks["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    except ImportError:  # Windows has no resource module
        pass
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        peaks["device"] = stats["peak_bytes_in_use"]
    return peaks
