"""Model (b): the slice ends where a tensor says."""

import jax.numpy as jnp
import numpy as np

VERDICT = "bounded dynamic"


def model(output, size_factor):
    return output[: int(size_factor * 5)]  # expect: VX104


def inputs():
    return np.arange(24, dtype=np.float32).reshape(8, 3), jnp.float32(0.75)
