"""A loss that is differentiated branches."""

import jax
import numpy as np

VERDICT = "not static"


def loss(w, x):
    y = (w * x).sum()
    return y if y > 0 else 2 * y  # expect: VX101


def model(w, x):
    return jax.grad(loss)(w, x)


def inputs():
    return np.ones(4, np.float32), np.arange(4, dtype=np.float32)
