"""Numbers taken out of arrays."""

import math

import numpy as np

VERDICT = "not static"


def model(x):
    scale = float(x[0])  # expect: VX108
    root = math.sqrt(x[1])  # expect: VX108
    last = x[2].item()  # expect: VX108
    return x * scale * root * last


def inputs():
    return (np.array([1.0, 4.0, 2.0], np.float32),)
