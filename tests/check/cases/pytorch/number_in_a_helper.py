"""The number decides in another function."""

import torch

VERDICT = "static per value"
STATIC = ("count",)


def repeated(x, times):
    if times > 2:  # expect: VX201
        x = x * 2
    return x


def model(x, count):
    return repeated(x, count + 1)


def inputs():
    return torch.arange(4.0), 3
