"""Check sizes that are given as one number or one per axis, and make dense grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from voxax.torch.core.errors import ArgumentError, check_cpu, check_features, wholes


def make_ntuple(x: Any, ndim: int) -> tuple[int, ...]:
    """Return ``ndim`` integers; ``x`` is one integer, or a list, tuple or tensor of ``ndim``."""
    values = x.reshape(-1) if isinstance(x, torch.Tensor) and x.ndim else x
    return tuple(wholes("size", values, ndim))


def per_axis(name: str, x: Any, least: int = 1) -> tuple[int, ...]:
    """Return ``x`` as three integers; raise :class:`ArgumentError` if one is below ``least``.

    ``x`` is one integer for all axes, or has three. ``name`` is the argument's name for the error.
    """
    sizes = make_ntuple(x, ndim=3)
    if min(sizes) < least:
        raise ArgumentError(f"{name}={x}: expected {least} or more")
    return sizes


def check_integers(name: str, tensor: torch.Tensor, columns: int, more: str = "") -> None:
    """Raise :class:`ArgumentError` unless the tensor is ``int32[N, columns]`` on the CPU.

    ``name`` begins the text of the error, and ``more`` ends it.
    """
    check_cpu(tensor, name)
    if tensor.dtype is not torch.int32 or tensor.ndim != 2 or tensor.shape[1] != columns:
        shape = f"{list(tensor.shape)} and {tensor.dtype}"
        raise ArgumentError(f"{name} of shape {shape}: expected int32[N, {columns}]{more}")


def make_tensor(x: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Return the integers ``x`` as a tensor ``[len(x)]`` with this dtype on this device."""
    return torch.tensor(x, dtype=dtype, device=device)


def make_divisible(x: int, divisor: int) -> int:
    """Return the smallest multiple of ``divisor`` that is at least ``x``."""
    return -(-x // divisor) * divisor


def to_dense(
    feats: torch.Tensor, coords: torch.Tensor, spatial_range: Sequence[int]
) -> torch.Tensor:
    """Return a dense grid with the features at their coordinates and zeros elsewhere.

    Args:
      feats: features ``[N, C]`` or ``[N]``.
      coords: coordinates ``[N, 4]``: batch index, x, y, z.
      spatial_range: number of scenes, then the size of each axis.

    Returns:
      ``[*spatial_range, C]``, or ``[*spatial_range]``.

    Raises:
      ArgumentError: coordinates outside the range, or unequal numbers of rows.
    """
    sizes = make_ntuple(spatial_range, ndim=4)
    check_features(feats, coords.shape[0])
    outside = ((coords < 0) | (coords >= torch.tensor(sizes, dtype=coords.dtype))).any(1)
    if outside.any():
        raise ArgumentError(
            f"coords {coords[outside][0].tolist()} outside spatial_range {sizes}: enlarge "
            "spatial_range, or drop these rows"
        )
    return feats.new_zeros((*sizes, *feats.shape[1:])).index_put(coords.long().unbind(1), feats)
