"""A scan whose carry changes its dtype: JAX's own error, at its line."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def step(carry, row):
    return (carry + row.sum()).astype(jnp.float32), row


def model(x):
    return jax.lax.scan(step, jnp.int32(0), x)  # expect: VX190


def inputs():
    return (np.ones((3, 2), np.float32),)
