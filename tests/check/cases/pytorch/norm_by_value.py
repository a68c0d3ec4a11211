"""Run a normalization, which writes to its buffers, depending on a value."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() < 0:  # expect: VX101
            x = self.norm(x)
        return self.linear(x)


torch.manual_seed(0)
model = Model()


def inputs():
    return (-torch.arange(12.0).reshape(3, 4),)
