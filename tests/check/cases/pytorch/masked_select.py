"""The entries that a mask selects."""

import torch

VERDICT = "bounded dynamic"


def model(x):
    return torch.masked_select(x, x > 0).mean()  # expect: VX105


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
