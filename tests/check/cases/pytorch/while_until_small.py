"""A loop until a norm is small."""

import torch

VERDICT = "not static"


def model(x):
    while x.norm() > 1:  # expect: VX102
        x = x / 2
    return x


def inputs():
    return (torch.arange(4.0),)
