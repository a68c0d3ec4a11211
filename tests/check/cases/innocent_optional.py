"""Arguments that may be None, or lists."""

import jax.numpy as jnp
import numpy as np

VERDICT = "static"


def model(x, mask=None, bias=None):
    if mask is not None:
        x = jnp.where(mask, x, 0)
    if isinstance(bias, (list, tuple)):
        x = x + sum(bias)
    return x


def inputs():
    return np.ones(4, np.float32), np.array([True, False, True, True]), [np.ones(4, np.float32)] * 2
