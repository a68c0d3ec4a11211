"""Check and convert arguments: sizes (one integer, or one per axis) and 32-bit coordinates."""

from __future__ import annotations

from typing import Any

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu, wholes


def convert_to_int_list(arg: Any, dimension: int) -> list[int]:
    """Return ``arg`` as a list of one integer per axis.

    Args:
      arg: one integer for all axes, or a container with one integer per axis.
      dimension: number of axes.

    Raises:
      ArgumentError: ``arg`` has another number of values, or values that are not integers.
    """
    return wholes("sizes", arg, dimension)


def convert_to_int_tensor(arg: Any, dimension: int) -> torch.Tensor:
    """Return ``arg``, one integer or one per axis, as an ``int32[dimension]`` tensor."""
    return torch.tensor(convert_to_int_list(arg, dimension), dtype=torch.int32)


def positive(name: str, arg: Any, dimension: int) -> list[int]:
    """Return ``arg`` as one integer per axis; raise :class:`ArgumentError` if one is below 1.

    ``arg`` is one integer for all ``dimension`` axes, or one per axis. ``name`` is the name of the
    argument, for the message.
    """
    values = wholes(name, arg, dimension)
    if min(values) < 1:
        raise ArgumentError(f"{name}={values}: expected integers of 1 or more")
    return values


def checked_dimension(dimension: Any) -> int:
    """Return ``dimension``; raise :class:`ArgumentError` unless it is an integer above 0."""
    if not isinstance(dimension, int) or dimension < 1:
        raise ArgumentError(f"dimension={dimension!r}: give the number of spatial axes, 1 or more")
    return dimension


def floored(values: torch.Tensor) -> torch.Tensor:
    """Return coordinates as ``int32``; floats are rounded down.

    Raises:
      ArgumentError: booleans or complex numbers, values that are not finite or exceed 32 bits, or
        a tensor that is not on the CPU.
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
