"""A conditional expression, and one in a comprehension."""

import numpy as np

VERDICT = "not static"


def model(x):
    sign = 1.0 if x.sum() > 0 else -1.0  # expect: VX101
    return [row for row in x if row.any()], sign  # expect: VX101


def inputs():
    return (np.array([[1.0, 2.0], [0.0, 0.0]], np.float32),)
