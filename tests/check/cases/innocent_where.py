"""Gradients of where that are safe: the operand is made safe first."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, y):
    safe = jnp.where(x > 0, x, 1.0)
    root = jnp.where(x > 0, jnp.sqrt(safe), 0.0)
    ratio = jnp.where(y != 0, x / jnp.where(y != 0, y, 1.0), 0.0)
    log = jnp.where(x > 0, jnp.log(jnp.maximum(x, 1e-6)), 0.0)
    relu = jnp.where(x > 0, x, 0.1 * x)
    soft = jnp.where(x > 0, 1 / (1 + x**2), jnp.sqrt(1 + y * y))
    return jnp.sum(root + ratio + log + relu + soft)


def inputs():
    return np.ones(3, np.float32), np.ones(3, np.float32)
