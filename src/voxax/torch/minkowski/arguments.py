"""Arguments: one integer or one for each axis, and coordinates that have 32 bits."""

from __future__ import annotations

from typing import Any

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu, wholes


def convert_to_int_list(arg: Any, dimension: int) -> list[int]:
    """Return one integer for each axis, of one or as many in any container, or raise."""
    return wholes("sizes", arg, dimension)


def convert_to_int_tensor(arg: Any, dimension: int) -> torch.Tensor:
    """As :func:`convert_to_int_list`, in an ``int32`` tensor."""
    return torch.tensor(convert_to_int_list(arg, dimension), dtype=torch.int32)


def positive(name: str, arg: Any, dimension: int) -> list[int]:
    """Return one integer of 1 or more for each axis, or raise."""
    values = wholes(name, arg, dimension)
    if min(values) < 1:
        raise ArgumentError(f"{name}={values}: expected integers of 1 or more")
    return values


def checked_dimension(dimension: Any) -> int:
    """Return the number of spatial axes, 1 or more, or raise."""
    if not isinstance(dimension, int) or dimension < 1:
        raise ArgumentError(f"dimension={dimension!r}: give the number of spatial axes, 1 or more")
    return dimension


def floored(values: torch.Tensor) -> torch.Tensor:
    """Return coordinates in ``int32``, which are floored if they have another dtype.

    Raises:
      ArgumentError: no numbers, beyond 32 bits or not finite, or another device.
    """
    check_cpu(values, "coordinates")
    if values.dtype is torch.int32:
        return values
    if values.dtype is torch.bool or values.is_complex():
        raise ArgumentError(f"coordinates of {values.dtype}: expected int32; convert with .int()")
    found = values.floor() if values.is_floating_point() else values
    if found.numel():
        low, high = (bound.item() for bound in found.aminmax())
        if not (low >= -(2**31) and high < 2**31):
            raise ArgumentError(
                f"coordinates from {low} to {high}: they are finite and have 32 bits. Subtract an "
                "origin, or take a larger voxel"
            )
    return found.int()
