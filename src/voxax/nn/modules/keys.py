"""Keys for weights, computed on the host.

flax computes the next key of a stream by two programs, and a seed's key by two more, which a new
process compiles before the first weight is drawn. The numbers here are the same.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from voxax import _compat

_THREEFRY = "threefry2x32"
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY, _MASK = 0x1BD11BDA, 2**32 - 1


def next_key(rngs: nnx.Rngs) -> jax.Array:
    """Return what ``rngs.params()`` returns, and count it there.

    Inside a trace, and for keys of another kind than JAX's default one, flax computes it.
    """
    stream = rngs.params
    if type(stream) is not nnx.RngStream or not _compat.is_evaluating():
        return stream()
    key, count = stream.key.get_value(), stream.count.get_value()
    if key.shape or str(jax.random.key_impl(key)) != _THREEFRY:
        return stream()
    words = jax.random.key_data(key)
    if not all(_compat.is_readable(x) and not x.committed for x in (words, count)):
        return stream()
    # Ready, since NumPy ends the process on an array that had no memory.
    words, count = map(np.asarray, jax.block_until_ready((words, count)))
    stream.count.set_value(jax.device_put(count + np.uint32(1)))
    return _key(fold_in(words, int(count)))


def rngs_of(seed: int) -> nnx.Rngs:
    """Return ``nnx.Rngs(seed)`` of a seed below 2**31."""
    if not _compat.is_evaluating() or jax.config.jax_default_prng_impl != _THREEFRY:  # pyright: ignore[reportAttributeAccessIssue]
        return nnx.Rngs(seed)
    return nnx.Rngs(_key(np.array([0, seed], np.uint32)))


class HostKeys:
    """What a layer of flax that is given ``rngs=`` asks for keys."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self._rngs = rngs

    @classmethod
    def of(cls, rngs: nnx.Rngs) -> Any:
        """Keys of these streams, which are counted there."""
        return cls(rngs)

    def params(self) -> jax.Array:
        """Return the next key of the stream of weights."""
        return next_key(self._rngs)


def _key(words: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jax.device_put(words), impl=_THREEFRY)


def fold_in(words: Any, data: int) -> np.ndarray:
    """Return the words ``uint32[2]`` of ``jax.random.fold_in`` for a key of the kind Threefry-2x32.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    first, second = (int(word) for word in words)
    schedule = first, second, first ^ second ^ _PARITY
    a, b = first, (data + second) & _MASK
    for number in range(5):
        for rotation in _ROTATIONS[number % 2]:
            a = (a + b) & _MASK
            b = ((b << rotation | b >> (32 - rotation)) & _MASK) ^ a
        a = (a + schedule[(number + 1) % 3]) & _MASK
        b = (b + schedule[(number + 2) % 3] + number + 1) & _MASK
    return np.array([a, b], np.uint32)
