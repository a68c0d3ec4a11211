"""NumPy inside of the step."""

import numpy as np

VERDICT = "not static"


def model(x):
    total = np.sum(np.asarray(x))  # expect: VX109
    listed = x.tolist()  # expect: VX109
    return total, len(listed)


def inputs():
    return (np.ones(3, np.float32),)
