"""Nested kernel sizes: which taps a kernel of each size has, and in which order taps are added.

A kernel of size s covers the offsets ``-((s - 1) // 2)`` to ``s // 2`` along every axis. So the
taps of size 3 are among those of size 4, which are among those of size 5. The *reaching size* of an
offset is the smallest kernel size that covers the offset:

    reaching size of o = max over axes of (2 o if o > 0, 1 - 2 o otherwise)

It is 1 for the center, 2 for +1, 3 for -1 and 4 for +2. A tap is part of a kernel of size s if its
reaching size is at most s. If taps are ordered by reaching size, the kernel of each size is a
prefix.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import InputError
from voxax.geometry.dtypes import clip_integers


def reaching_size(offsets: Any) -> np.ndarray:
    """Return the smallest kernel size that contains each offset.

    Args:
      offsets: ``int[K, D]``, in taps (before dilation); static.

    Returns:
      ``int32[K]``, 1 or more.

    Raises:
      InputError: ``offsets`` have another rank or are no integers.
    """
    taps = np.asarray(offsets)
    if taps.ndim != 2 or not np.issubdtype(taps.dtype, np.integer):
        raise InputError(f"offsets of shape {taps.shape}, {taps.dtype}: expected int[K, D]")
    sizes = np.where(taps > 0, 2 * taps, 1 - 2 * taps)
    return sizes.max(axis=1, initial=1).astype(np.int32)


def hard_mask(size: jax.Array, offsets: Any) -> jax.Array:
    """Return a mask of the taps that a kernel of each given size has.

    Args:
      size: ``[...]``, kernel sizes. Floats are rounded down. A size below 1 has no tap.
      offsets: ``int[K, D]``, the offset of each tap; static.

    Returns:
      ``bool[..., K]``, True if the kernel has the tap.

    Raises:
      InputError: as :func:`reaching_size`.
    """
    size = clip_integers(size)
    return size[..., None] >= _reach(size, offsets)


def soft_mask(size: jax.Array, offsets: Any, tau: float = 1.0) -> jax.Array:
    """Return weights of the taps for each kernel size, which are differentiable in the size.

    The weight of tap k is ``clip((size - r_k) / tau + 1, 0, 1)``, where r_k is the smallest size
    with the tap: it is 1 from this size on, and falls to 0 over ``tau`` smaller sizes. The usual
    weight ``clip((radius - |o|_inf) / (tau / 2) + 1, 0, 1)`` of an offset o is stated in radii, so
    it does not cover even sizes. With ``tau <= 1`` the result equals :func:`hard_mask` at whole
    sizes.

    Args:
      size: ``float[...]``, kernel sizes.
      offsets: ``int[K, D]``, the offset of each tap; static.
      tau: width of the ramp, in sizes, more than 0.

    Returns:
      ``[..., K]`` in the dtype of ``size``.

    Raises:
      InputError: sizes are integers, or ``tau`` is 0 or less; also as :func:`reaching_size`.
    """
    if isinstance(tau, float | int) and not tau > 0:
        raise InputError(f"tau={tau}: the ramp's width must be more than 0")
    size = jnp.asarray(size)
    if not jnp.issubdtype(size.dtype, jnp.floating):
        raise InputError(f"sizes of {size.dtype} have no gradient: give floats, or use hard_mask")
    return jnp.clip((size[..., None] - _reach(size, offsets)) / tau + 1, 0, 1)


def taps_by_size(offsets: Any) -> np.ndarray:
    """Return the indices of the taps, sorted by the smallest kernel size that has the tap.

    The sort is stable.

    Args:
      offsets: ``int[K, D]``, the offset of each tap; static.

    Returns:
      ``int[K]``, indices of taps.

    Raises:
      InputError: as :func:`reaching_size`.
    """
    return np.argsort(reaching_size(offsets), kind="stable")


def taps_within(offsets: Any, largest: int | None = None) -> np.ndarray:
    """Return the number of taps of each kernel size.

    If this number is n, the taps are the first n entries of :func:`taps_by_size`.

    Args:
      offsets: ``int[K, D]``, the offset of each tap; static.
      largest: the last size; None takes the smallest size that has every tap.

    Returns:
      ``int[largest + 1]``, the number of taps of sizes 0, 1, ..., ``largest``.

    Raises:
      InputError: as :func:`reaching_size`.
    """
    reach = reaching_size(offsets)
    if largest is None:
        largest = int(reach.max(initial=1))
    return np.searchsorted(np.sort(reach), np.arange(largest + 1), side="right")


def _reach(size: jax.Array, offsets: Any) -> jax.Array:
    """Return the smallest kernel size that has each offset, ``[1, ..., 1, K]``.

    ``offsets`` is ``int[K, D]``. The result has the dtype of ``size``, and broadcasts with
    ``size[..., None]``.
    """
    reach = reaching_size(offsets).reshape((1,) * size.ndim + (-1,))
    return jnp.asarray(reach).astype(size.dtype)
