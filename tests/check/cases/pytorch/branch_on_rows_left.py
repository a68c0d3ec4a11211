"""Branch on the number of rows that are left."""

import torch

VERDICT = "not static"


def model(x, keep):
    y = x[keep] * 2  # expect: VX105
    if y.shape[0] > 2:  # expect: VX101
        y = y[:2]
    return y.sum() / y.size(1)


def inputs():
    return torch.ones(4, 3), torch.tensor([True, False, True, True])
