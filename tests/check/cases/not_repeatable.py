"""A random number of NumPy is frozen into the program."""

import numpy as np

VERDICT = "static"


def model(x):
    return x + np.random.default_rng().normal(size=3).astype(np.float32)  # expect: VX205


def inputs():
    return (np.ones(3, np.float32),)
