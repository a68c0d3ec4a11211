"""Keys of streams, of the numbers that flax gives.

flax computes the next key of a stream by two programs, and a seed's key by two more, which a new
process compiles before the first weight is drawn.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from voxax import _compat
from voxax._native.random import PLAIN_KEY, fold_in, fold_in_on_host, is_plain_key


def next_key(stream: nnx.RngStream) -> jax.Array:
    """Return what ``stream()`` returns, and count it there.

    It compiles nothing where the numbers are known, and is one operator of the library in a
    program for CPUs. For keys of another kind than JAX's default one, flax computes it.
    """
    key, count = stream.key.get_value(), stream.count.get_value()
    if type(stream) is not nnx.RngStream or key.shape or not is_plain_key(key):
        return stream()
    words = jax.random.key_data(key)
    if all(_compat.is_readable(x) and not x.committed for x in (words, count)):
        # Ready, since NumPy ends the process on an array that had no memory.
        words, count = map(np.asarray, jax.block_until_ready((words, count)))
        words, count = jax.device_put((fold_in_on_host(words, count), count + np.uint32(1)))
    else:
        words, count = fold_in(words, count), count + 1
    stream.count.set_value(count)
    return jax.random.wrap_key_data(words, impl=PLAIN_KEY)


def rngs_of(seed: int) -> nnx.Rngs:
    """Return ``nnx.Rngs(seed)`` of a seed below 2**31."""
    if not _compat.is_evaluating() or jax.config.jax_default_prng_impl != PLAIN_KEY:  # pyright: ignore[reportAttributeAccessIssue]
        return nnx.Rngs(seed)
    words = jax.device_put(np.array([0, seed], np.uint32))
    return nnx.Rngs(jax.random.wrap_key_data(words, impl=PLAIN_KEY))


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
        return next_key(self._rngs.params)
