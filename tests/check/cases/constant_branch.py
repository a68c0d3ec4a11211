"""Trace a constant that jnp computes inside the step."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x):
    if jnp.ones(3).sum() > 2:  # expect: VX101
        return x
    return -x


def inputs():
    return (np.ones(3, np.float32),)
