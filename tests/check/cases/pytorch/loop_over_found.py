"""A loop over as many rows as are found."""

import torch

VERDICT = "not static"


def model(x):
    rows = torch.nonzero(x > 1)  # expect: VX106
    total = x.sum()
    for row in rows:  # expect: VX103
        total = total + x[row[0]]  # expect: VX112
    return total


def inputs():
    return (torch.arange(4.0),)
