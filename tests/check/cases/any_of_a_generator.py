"""A generator compares, and `any` asks."""

import numpy as np

VERDICT = "not static"


def model(x):
    if any(v > 2 for v in x):  # expect: VX101
        return x * 2
    return x


def inputs():
    return (np.arange(4, dtype=np.float32),)
