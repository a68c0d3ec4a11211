"""A function that is compiled already, whose flag was not declared static."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "static per value"
STATIC = ("training",)


@jax.jit
def model(x, training):
    if training:  # expect: VX201
        return jnp.maximum(x, 0)
    return x


def inputs():
    return np.ones(3, np.float32), True
