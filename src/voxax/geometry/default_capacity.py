"""The rows that eager calls take by themselves."""

from __future__ import annotations

from voxax.coords import bucket_capacity, ladder_capacity
from voxax.hardware.target import target_platform


def default_capacity(n: int) -> int:
    """Return the capacity of ``n`` rows where the user gives none.

    On CPUs, whose kernels pass padding over, it is one of few: a data set compiles few programs.
    Accelerators compute padding, and have finer steps.
    """
    return ladder_capacity(n) if has_ladder() else bucket_capacity(n)


def has_ladder() -> bool:
    """Return whether programs of this process are most likely for CPUs."""
    return target_platform() == "cpu"
