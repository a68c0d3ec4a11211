"""Model (c): as many turns as a tensor says."""

import jax.numpy as jnp
import numpy as np

VERDICT = "not static"


def model(x, reps):
    res = x
    for _ in range(reps):  # expect: VX103
        res = res + x
    return res


def inputs():
    return np.arange(4, dtype=np.float32), jnp.int32(3)
