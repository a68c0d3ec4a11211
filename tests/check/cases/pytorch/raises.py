"""A check raises."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def forward(self, x):
        if torch.isnan(x).any():  # expect: VX101
            raise ValueError("NaN")
        return x * 2


model = Model()


def inputs():
    return (torch.arange(4.0),)
