"""Draw keys from random streams without compiling programs; the keys are the same as in flax.

flax compiles two programs for the next key of a stream, and two more for the key of a seed. A new
process would compile them before it draws the first weight.
"""

from __future__ import annotations

import jax
import numpy as np
from flax import nnx

from voxax import _compat
from voxax._native.random import PLAIN_KEY, fold_in, fold_in_on_host, is_plain_key


def next_key(stream: nnx.RngStream) -> jax.Array:
    """Return the key that ``stream()`` would return, and advance the stream's count.

    Nothing is compiled if key and count are not traced. A traced program for CPUs computes the key
    by one operator of voxax. If the key is not of JAX's default kind, flax computes it.
    """
    key, count = stream.key.get_value(), stream.count.get_value()
    if type(stream) is not nnx.RngStream or key.shape or not is_plain_key(key):
        return stream()
    words = jax.random.key_data(key)
    if all(_compat.is_readable(x) and not x.committed for x in (words, count)):
        # Wait first: NumPy ends the process on an array whose allocation failed.
        words, count = map(np.asarray, jax.block_until_ready((words, count)))
        words, count = jax.device_put((fold_in_on_host(words, count), count + np.uint32(1)))
    else:
        words, count = fold_in(words, count), count + 1
    stream.count.set_value(count)
    return jax.random.wrap_key_data(words, impl=PLAIN_KEY)


def rngs_of(seed: int) -> nnx.Rngs:
    """Return ``nnx.Rngs(seed)`` for a seed below 2**31.

    In eager calls with JAX's default kind of key, this compiles no program.
    """
    if not _compat.is_evaluating() or jax.config.jax_default_prng_impl != PLAIN_KEY:  # pyright: ignore[reportAttributeAccessIssue]
        return nnx.Rngs(seed)
    words = jax.device_put(np.array([0, seed], np.uint32))
    return nnx.Rngs(jax.random.wrap_key_data(words, impl=PLAIN_KEY))


class HostKeys:
    """Wrapper of ``rngs`` to pass as ``rngs=`` to a flax layer, which draws by :func:`next_key`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self._rngs = rngs

    def params(self) -> jax.Array:
        """Return the next key of the stream ``params``, for initial weights."""
        return next_key(self._rngs.params)
