"""Model (a): the side depends on the sum of the output."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "not static"
WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def linear(x):
    return x @ WEIGHT


def model(x):
    output = linear(x)
    if jnp.sum(output) > 0:  # expect: VX101
        return jax.nn.relu(output)
    else:
        return jax.nn.sigmoid(output)


def inputs():
    return (np.arange(12, dtype=np.float32).reshape(3, 4) - 5,)
