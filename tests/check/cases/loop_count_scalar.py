"""Model (c): as many turns as a Python number says."""

import numpy as np

VERDICT = "static per value"
STATIC = ("reps",)


def model(x, reps):
    res = x
    for _ in range(reps):  # expect: VX201
        res = res + x
    return res


def inputs():
    return np.arange(4, dtype=np.float32), 3
