"""64 bits asked for and not given; half precision widened by its other operand."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, scale):
    total = x.astype(jnp.float64).sum()  # expect: VX305
    return x * scale, total  # expect: VX306


def inputs():
    return jnp.ones(3, jnp.bfloat16), np.ones(3, np.float32)
