"""The fault is in a module that is used twice."""

import torch

VERDICT = "not static"


class Gate(torch.nn.Module):
    def forward(self, x):
        if torch.any(x < 0):  # expect: VX101
            return x.abs()
        return x


model = torch.nn.Sequential(Gate(), torch.nn.ReLU(), Gate())


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
