"""A value of the trace is kept in a global."""

import numpy as np

VERDICT = "static"
SEEN = []


def model(x):
    SEEN.append(x * 2)  # expect: VX301
    return x


def inputs():
    return (np.ones(3, np.float32),)
