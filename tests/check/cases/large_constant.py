"""Parameters that are captured and not passed."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"
WEIGHT = jnp.asarray(np.ones((1024, 512), np.float32))


def model(x):
    return x @ WEIGHT  # expect: VX304


def inputs():
    return (np.ones((2, 1024), np.float32),)
