"""A large tensor that is neither parameter nor buffer."""

import torch

VERDICT = "static"


TABLE = torch.zeros(600, 600)


def model(x):
    return x @ TABLE  # expect: VX304


def inputs():
    return (torch.ones(2, 600),)
