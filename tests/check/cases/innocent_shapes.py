"""Branches, loops and slices by shapes are static."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x):
    if x.shape[0] > 2 and x.ndim == 2:
        x = x[: x.shape[0] // 2]
    for i in range(len(x)):
        x = x + i
    assert x.dtype == jnp.float32
    while x.shape[0] > 1:
        x = x[: x.shape[0] // 2]
    return x.reshape(x.size, 1), jnp.zeros(x.shape)


def inputs():
    return (np.ones((4, 3), np.float32),)
