"""Assignment into an array, as NumPy allows."""

import numpy as np

VERDICT = "not static"


def model(x):
    x[0] = 1.0  # expect: VX113
    x[1] += 2.0  # expect: VX113
    return x


def inputs():
    return (np.zeros(3, np.float32),)
