"""where protects the value, and not the gradient."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, y):
    root = jnp.where(x > 0, jnp.sqrt(x), 0.0)  # expect: VX307
    ratio = jnp.where(y != 0, x / y, 0.0)  # expect: VX307
    return jnp.sum(root + ratio)


def inputs():
    return np.ones(3, np.float32), np.ones(3, np.float32)
