"""How long measuring may take, per problem and in one process."""

from __future__ import annotations

import os
import threading

from voxax.errors import InputError

_PER_PROBLEM = 2.0
_PER_PROCESS = 40.0

_lock = threading.Lock()
_spent = 0.0


def allowance() -> float:
    """Seconds that the next problem may take: 2, or what is left of the process's 40.

    ``VOXAX_AUTOTUNE_BUDGET`` replaces the 40. Where nothing is left, problems that are not in
    the cache run unmeasured (their choice is marked ``predicted``), and a later process, or
    ``vx.tune``, measures them.
    """
    return min(_PER_PROBLEM, max(0.0, _limit() - _spent))


def spend(seconds: float) -> None:
    """Count time that was spent measuring."""
    global _spent
    with _lock:
        _spent += seconds


def spent() -> float:
    """Seconds that this process has spent measuring."""
    return _spent


def _limit() -> float:
    text = os.environ.get("VOXAX_AUTOTUNE_BUDGET", "").strip()
    if not text:
        return _PER_PROCESS
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise InputError(f"VOXAX_AUTOTUNE_BUDGET={text}: expected seconds, 0 or more")
    return limit
