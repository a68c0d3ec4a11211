"""A Python number that is only computed with is traced: one program for all values."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, rate, steps):
    return jnp.where(steps > 2, x * rate, x / (rate + 1)) + steps


def inputs():
    return np.ones(3, np.float32), 0.5, 3
