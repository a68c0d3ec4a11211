"""Functions whose results are as many as the values say."""

import jax.numpy as jnp
import numpy as np

VERDICT = "bounded dynamic"


def model(x):
    values = jnp.unique(x)  # expect: VX106
    rows = jnp.argwhere(x > 1)  # expect: VX106
    flat = jnp.flatnonzero(x)  # expect: VX106
    (where,) = jnp.where(x > 1)  # expect: VX106
    return values, rows, flat, where


def inputs():
    return (np.array([1, 2, 2, 0], np.int32),)
