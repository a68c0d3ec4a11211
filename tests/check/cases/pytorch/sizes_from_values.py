"""Functions whose result's size depends on values."""

import torch

VERDICT = "bounded dynamic"


def model(x, labels, counts):
    rows = torch.nonzero(x)  # expect: VX106
    (same,) = torch.where(labels == 1)  # expect: VX106
    classes = labels.unique()  # expect: VX106
    repeated = counts.repeat_interleave(counts)  # expect: VX106
    return rows, same, classes, repeated


def inputs():
    return torch.arange(4.0), torch.tensor([1, 2, 1]), torch.tensor([2, 0, 1])
