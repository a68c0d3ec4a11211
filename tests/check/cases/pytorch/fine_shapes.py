"""Branches, loops and slices by shapes."""

import torch

VERDICT = "static"


def model(x):
    if x.shape[0] > 2 and x.dim() == 2:
        x = x[: x.size(0) // 2 + 1]
    for i in range(len(x)):
        x = x + i
    assert x.dtype == torch.float32
    while x.shape[0] > 1:
        x = x[: x.shape[0] // 2]
    return x.reshape(x.numel(), 1), x.new_zeros(x.shape)


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
