"""Move a tensor to the CPU and back."""

import torch

VERDICT = "static"


def model(x):
    y = x.cpu()  # expect: VX303
    return y * 2


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
