"""A value in a message, and as a key."""

import numpy as np

VERDICT = "not static"
NAMES = {1: "one"}


def model(x, key):
    text = f"{x[0]:.2f}"  # expect: VX114
    name = NAMES[key]  # expect: VX115
    return x + len(text) + len(name)


def inputs():
    return np.zeros(3, np.float32), np.int32(1)
