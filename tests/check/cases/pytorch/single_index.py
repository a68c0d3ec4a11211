"""PyTorch reads a single index as a number."""

import torch

VERDICT = "not static"


def model(x, i):
    return x[i] * 2  # expect: VX112


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.tensor(1)
