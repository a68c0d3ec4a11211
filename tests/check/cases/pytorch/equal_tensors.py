"""torch.equal gives Python a bool."""

import torch

VERDICT = "not static"


def model(x, y):
    if torch.equal(x, y):  # expect: VX101
        return x
    return x - y


def inputs():
    return torch.ones(3), torch.ones(3)
