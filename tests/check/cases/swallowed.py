"""The error of tracing is caught, so the program silently goes another way."""

import numpy as np

VERDICT = "not static"


def model(x):
    try:
        if x.sum() > 0:  # expect: VX101
            return x * 2
    except Exception:
        pass
    return x


def inputs():
    return (np.arange(4, dtype=np.float32),)
