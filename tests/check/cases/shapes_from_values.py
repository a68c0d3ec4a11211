"""Shapes computed from a tensor."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x, n):
    steps = jnp.arange(n)  # expect: VX107
    padded = jnp.zeros(n + 1)  # expect: VX107
    side = int(x.max())  # expect: VX107
    square = x[: 2 * 2].reshape(side, 2)
    return steps, padded, square


def inputs():
    return np.array([1.0, 2.0, 2.0, 0.0], np.float32), jnp.int32(2)
