"""A while loop on an error."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x):
    while jnp.max(jnp.abs(x)) > 1.0:  # expect: VX102
        x = x * 0.5
    return x


def inputs():
    return (np.array([3.0, -7.0], np.float32),)
