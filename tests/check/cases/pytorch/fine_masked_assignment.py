"""Assigning through a mask keeps the shape."""

import torch

VERDICT = "static"


def model(x, mask):
    y = x.clone()
    y[mask] = 0.0
    y[y > 2] = -1.0
    return y


def inputs():
    return torch.arange(4.0), torch.tensor([True, False, True, True])
