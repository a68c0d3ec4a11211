"""The number of rows (capacity) that eager calls give their results by default."""

from __future__ import annotations

from voxax.coords import bucket_capacity, ladder_capacity
from voxax.hardware.target import target_platform


def default_capacity(n: int) -> int:
    """Return the capacity of an array for ``n`` rows if the user gives none.

    On CPUs, whose kernels skip padding, it is one of few sizes that are far apart, so that a data
    set compiles few programs. Accelerators compute padding too, so their sizes are closer together.
    """
    return ladder_capacity(n) if has_ladder() else bucket_capacity(n)


def has_ladder() -> bool:
    """Return whether default capacities are few and far apart, which is so on CPUs.

    They then come from :func:`voxax.coords.ladder_capacity`, otherwise from
    :func:`voxax.coords.bucket_capacity`.
    """
    return target_platform() == "cpu"
