"""Python's own logic asks for the truth of its operands."""

import numpy as np

VERDICT = "not static"


def model(x, y):
    both = x.sum() > 0 and y.sum() > 0  # expect: VX101
    neither = not x.any()  # expect: VX101
    largest = max(x[0], y[0])  # expect: VX101
    return both, neither, largest


def inputs():
    return np.ones(3, np.float32), np.ones(3, np.float32)
