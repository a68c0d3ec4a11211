"""Model (c): as many turns as a Python number says."""

import torch

VERDICT = "static per value"
STATIC = ("reps",)


class Model(torch.nn.Module):
    def forward(self, x, reps):
        res = x
        for _ in range(reps):  # expect: VX201
            res = res + x
        return res


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(4.0), 3
