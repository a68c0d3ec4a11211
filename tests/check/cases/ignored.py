"""Findings that the source ignores, with the reason."""

import numpy as np

VERDICT = "static"


def model(x):
    if x.sum() > 0:  # voxax: ignore[VX101] runs eagerly, once a day
        x = -x
    # voxax: ignore[VX108, VX109] this too
    return x * float(x[0])


def inputs():
    return (np.ones(3, np.float32),)
