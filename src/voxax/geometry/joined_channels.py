"""Channels of several arrays of features side by side, in one native call on CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _native
from voxax._native.operators import FRACTIONS, differentiable_operator


def can_join(arrays: Sequence[jax.Array]) -> bool:
    """Return whether :func:`join_channels` takes these: two and more, of one dtype of fractions.

    Without the library none, whose eager calls would compile a program for each size.
    """
    if _native.unavailable() is not None:
        return False
    dtypes = {array.dtype for array in arrays}
    return len(arrays) > 1 and len(dtypes) == 1 and dtypes.pop().name in FRACTIONS


def join_channels(arrays: Sequence[jax.Array], valid: jax.Array) -> jax.Array:
    """Return ``[N, sum of C_i]``, zero in rows that are not valid.

    Args:
      arrays: ``[N, C_i]``, see :func:`can_join`; rows that are not valid may hold anything.
      valid: ``bool[N]``.
    """
    return _cat(*arrays, valid)[0]


def _portable(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    *sides, valid = arrays
    joined = jnp.concatenate(sides, axis=1)
    return (jnp.where(valid[:, None], joined, jnp.zeros((), joined.dtype)),)


def _value(call: Any, *arrays: Any) -> Any:
    first, width = arrays[0], sum(side.shape[1] for side in arrays[:-1])
    return call("cat", (jax.ShapeDtypeStruct((first.shape[0], width), first.dtype),), *arrays)


def _gradients(call: Any, dy: Any, *arrays: Any, moves: tuple[int, ...]) -> Any:
    *sides, valid, _ = arrays
    results = [jax.ShapeDtypeStruct(side.shape, side.dtype) for side in sides]
    found = call("cat_gradients", results, dy, valid)
    return tuple(found[place] for place in moves)


_cat = differentiable_operator("voxax_cat", _value, _portable, _gradients)
