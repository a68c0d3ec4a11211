"""A function that torch.cond traces reads a value, on the side that the example does not take."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def forward(self, x):
        def scaled(x):
            return x / float(x.max())  # expect: VX108

        return torch.cond(x.sum() > 0, lambda x: x + 1, scaled, (x,))


model = Model()


def inputs():
    return (torch.arange(4.0) + 1,)
