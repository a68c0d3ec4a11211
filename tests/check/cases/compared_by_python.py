"""Python's max, sorted and in compare arrays."""

import numpy as np

VERDICT = "not static"


def model(x):
    a = max(x[0], x[1])  # expect: VX101
    b = sorted([x[0], x[1]])  # expect: VX101
    c = x[0] in [1, 2]  # expect: VX101
    return a + b[0] + c


def inputs():
    return (np.arange(4, dtype=np.float32),)
