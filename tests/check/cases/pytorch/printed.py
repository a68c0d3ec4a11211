"""Text of a value."""

import torch

VERDICT = "not static"


def model(x):
    total = x.sum()
    told = f"sum {total:.2f}"  # expect: VX114
    return x - total * len(told)


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
