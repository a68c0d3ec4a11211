"""Sums that can be zero: lengths, and counts that are divided by."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, mask):
    length = jnp.sqrt(jnp.sum(x * x))
    unit = jnp.where(length > 0, x / length, 0.0)  # expect: VX307
    total, count = jnp.sum(jnp.where(mask, x, 0.0)), jnp.sum(mask)
    mean = jnp.where(count > 0, total / count, 0.0)  # expect: VX307
    return jnp.sum(unit) + mean


def inputs():
    return np.ones(3, np.float32), np.array([True, False, True])
