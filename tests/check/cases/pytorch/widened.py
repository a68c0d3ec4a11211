"""A float64 operand makes the result wide."""

import torch

VERDICT = "static"


def model(x):
    weight = torch.linspace(0, 1, 4, dtype=torch.float64)
    return x * weight  # expect: VX306


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
