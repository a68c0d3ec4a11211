"""A branch in a scripted function is found at its own line."""

import torch

VERDICT = "not static"


@torch.jit.script
def capped(x):
    if x.max() > 1.0:  # expect: VX101
        x = x / x.max()
    return x


class Model(torch.nn.Module):
    def forward(self, x):
        return capped(x * 2)


model = Model()


def inputs():
    return (torch.arange(4.0),)
