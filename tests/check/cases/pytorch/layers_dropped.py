"""Python draws which layers run."""

import random

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(8)])

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 0.5:
                continue
            x = layer(x)  # expect: VX205
        return x


torch.manual_seed(0)
model = Model()


def inputs():
    # Two runs drop equally many layers, but others. Unseeded they drop the same in 1 of 256 cases.
    random.seed(6)
    return (torch.randn(3, 4),)
