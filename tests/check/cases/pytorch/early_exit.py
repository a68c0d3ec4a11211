"""The loop over layers ends when a value says so."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
            if (x.abs() > 0.9).any():  # expect: VX101
                break
        return x


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.randn(3, 4),)
