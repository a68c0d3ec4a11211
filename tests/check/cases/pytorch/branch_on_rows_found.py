"""Branch on the number of rows that are found."""

import torch

VERDICT = "not static"


def model(x):
    idx = x.nonzero()  # expect: VX106
    if idx.numel() == 0:  # expect: VX101
        return x.sum()
    return x[idx[:, 0]].sum()


def inputs():
    return (torch.arange(4.0),)
