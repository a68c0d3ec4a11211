"""Model (a) with a Python threshold: the branch still depends on the tensor."""

import jax
import jax.numpy as jnp
import numpy as np

VERDICT = "not static"
WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


def model(x, threshold):
    output = x @ WEIGHT
    if jnp.sum(output) > threshold:  # expect: VX101
        return jax.nn.relu(output)
    return jax.nn.sigmoid(output)


def inputs():
    return np.arange(12, dtype=np.float32).reshape(3, 4) - 5, 0.5
