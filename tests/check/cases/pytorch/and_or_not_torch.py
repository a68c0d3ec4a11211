"""Each operand is asked."""

import torch

VERDICT = "not static"


def model(x):
    if x[0, 0] < 0 and not x.sum() > 100:  # expect: VX101, VX101
        x = x * 2
    return x


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
