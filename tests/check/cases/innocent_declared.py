"""Static arguments that are declared: known, and no finding."""

import functools

import jax
import numpy as np

VERDICT = "static per value"
STATIC = ("reps", "mode")


@functools.partial(jax.jit, static_argnames=("reps", "mode"))
def model(x, reps, mode):
    for _ in range(reps):
        x = x + 1
    return -x if mode == "negative" else x


def inputs():
    return np.ones(3, np.float32), 2, "negative"
