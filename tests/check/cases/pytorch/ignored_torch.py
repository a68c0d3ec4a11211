"""Hold findings that the source ignores."""

import torch

VERDICT = "static"


def model(x):
    if x.sum() > 0:  # voxax: ignore[VX101] runs eagerly
        return x
    return -x


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
