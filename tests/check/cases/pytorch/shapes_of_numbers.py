"""Shapes that tensors decide."""

import torch

VERDICT = "not static"


def model(x, n):
    grid = torch.zeros(n, 2)  # expect: VX107
    rows = torch.arange(int(n))  # expect: VX107
    return grid, rows, x.view(n.item(), -1)  # expect: VX107


def inputs():
    return torch.arange(12.0), torch.tensor(3)
