"""A fast path for known values: the error is caught, as libraries do."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, index):
    try:
        row = x[int(index)]
    except jax.errors.ConcretizationTypeError:
        row = jnp.take(x, index, axis=0)
    return row


def inputs():
    return np.ones((3, 2), np.float32), jnp.int32(1)
