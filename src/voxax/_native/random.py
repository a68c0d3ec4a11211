"""The random numbers of ``jax.random``, from the native library on CPUs, where XLA is slow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax._native import operators
from voxax._native.on_cpu import natively_on_cpu

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY, _MASK = 0x1BD11BDA, 2**32 - 1

PLAIN_KEY = "threefry2x32"
"""The name of the only random generator whose keys the native library supports."""


def is_plain_key(key: Any) -> bool:
    """Return whether the native library draws the same numbers as JAX for this random key."""
    if not jax.config.jax_threefry_partitionable or getattr(key, "shape", None) is None:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key.shape == () and str(jax.random.key_impl(key)) == PLAIN_KEY
    default = jax.config.jax_default_prng_impl  # pyright: ignore[reportAttributeAccessIssue]
    return key.dtype == np.uint32 and key.shape == (2,) and default == PLAIN_KEY


def fold_in(words: jax.Array, number: jax.Array) -> jax.Array:
    """Return the key data, ``uint32[2]``, of ``jax.random.fold_in(key, number)``.

    Args:
      words: ``uint32[2]``, the key data of ``key``, for which :func:`is_plain_key` is true.
      number: ``uint32[]``, the number to fold in.
    """
    return _fold_in(words, number)[0]


def fold_in_on_host(words: np.ndarray, number: np.ndarray | int) -> np.ndarray:
    """Return the result of :func:`fold_in` in NumPy, without the library.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    first, second = (int(word) for word in words)
    schedule = first, second, first ^ second ^ _PARITY
    a, b = first, (int(number) + second) & _MASK
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            a = (a + b) & _MASK
            b = ((b << rotation | b >> (32 - rotation)) & _MASK) ^ a
        a = (a + schedule[(turn + 1) % 3]) & _MASK
        b = (b + schedule[(turn + 2) % 3] + turn + 1) & _MASK
    return np.array([a, b], np.uint32)


def permutation(key: jax.Array, count: int) -> jax.Array:
    """Return ``jax.random.permutation(key, count)``, ``int32[count]``, for a count up to 1000.

    :func:`is_plain_key` must be true for ``key``.
    """
    (order,) = _permutation(jax.random.key_data(key), count=count)
    return order


def _order_portable(words: jax.Array, *, count: int) -> tuple[jax.Array, ...]:
    key = jax.random.wrap_key_data(words, impl=PLAIN_KEY)
    return (jax.random.permutation(key, np.arange(count, dtype=np.int32)),)


def _order(call: Any, words: Any, *, count: int) -> Any:
    return call("permutation", (jax.ShapeDtypeStruct((count,), np.int32),), words)


_permutation = natively_on_cpu(
    "voxax_permutation",
    functools.partial(_order, operators.by_xla),
    _order_portable,
    eager=functools.partial(_order, operators.on_numpy),
)


def _portable(words: jax.Array, number: jax.Array) -> tuple[jax.Array, ...]:
    key = jax.random.wrap_key_data(words, impl=PLAIN_KEY)
    return (jax.random.key_data(jax.random.fold_in(key, number)),)


def _native(words: jax.Array, number: jax.Array) -> tuple[jax.Array, ...]:
    return operators.by_xla("fold_in", (jax.ShapeDtypeStruct((2,), np.uint32),), words, number)


def _on_host(words: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, ...]:
    return (fold_in_on_host(words, number),)


_fold_in = natively_on_cpu("voxax_fold_in", _native, _portable, eager=_on_host)
