"""Model (b): the slice ends where a Python number says."""

import numpy as np

VERDICT = "static per value"
STATIC = ("size_factor",)


def model(output, size_factor):
    return output[: int(size_factor * 5)]  # expect: VX201


def inputs():
    return np.arange(24, dtype=np.float32).reshape(8, 3), 0.75
