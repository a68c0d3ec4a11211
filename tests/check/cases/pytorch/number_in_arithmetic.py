"""A number of Python, only computed with."""

import math

import torch

VERDICT = "not static"


def model(x):
    scale = float(x.abs().max())  # expect: VX108
    return x * math.exp(scale)


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
