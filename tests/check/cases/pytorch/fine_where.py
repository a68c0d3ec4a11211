"""torch.where and masks that keep the shape."""

import torch

VERDICT = "static"


def model(x, keep):
    y = torch.where(x.sum() > 0, torch.relu(x), torch.sigmoid(x))
    y = y.masked_fill(~keep, 0.0)
    y[y > 3] = 3.0
    return y.sum() / keep.sum().clamp(min=1)


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.ones(3, 4, dtype=torch.bool)
