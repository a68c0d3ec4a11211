"""Rows that a mask selects."""

import torch

VERDICT = "bounded dynamic"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        keep = x.sum(dim=1) > 0
        return self.linear(x[keep])  # expect: VX105


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
