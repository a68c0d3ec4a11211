"""A fault in a function that is compiled on its own, and one in a scan."""

import jax
import numpy as np

VERDICT = "not static"


@jax.jit
def inner(x):
    if x.sum() > 0:  # expect: VX101
        return x
    return -x


def step(carry, row):
    carry = carry + (row.sum() if row[0] > 0 else 0.0)  # expect: VX101
    return carry, row


def model(x):
    total, rows = jax.lax.scan(step, 0.0, inner(x))
    return total, rows


def inputs():
    return (np.ones((3, 2), np.float32),)
