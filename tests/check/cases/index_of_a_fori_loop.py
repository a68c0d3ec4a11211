"""The index of a compiled loop has no value."""

import jax
import numpy as np

VERDICT = "not static"


def model(x):
    def body(i, v):
        if i % 2 == 0:  # expect: VX101
            return v * 2
        return v + 1

    return jax.lax.fori_loop(0, 5, body, x)


def inputs():
    return (np.arange(4, dtype=np.float32),)
