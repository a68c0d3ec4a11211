"""Python's max compares tensors."""

import torch

VERDICT = "not static"


def model(x, y):
    return max(x.sum(), y.sum())  # expect: VX101


def inputs():
    return torch.arange(3.0), torch.ones(3)
