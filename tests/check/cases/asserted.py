"""An assertion about values."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x):
    assert jnp.all(jnp.isfinite(x)), "not finite"  # expect: VX110
    return x * 2


def inputs():
    return (np.ones(3, np.float32),)
