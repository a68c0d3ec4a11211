"""A flag of Python: two programs."""

import torch

VERDICT = "static per value"
STATIC = ("residual",)


def model(x, residual):
    y = x * 2
    if residual:  # expect: VX201
        y = y + x
    return y


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, True
