"""A counter of Python decides how strong the noise is."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * (0.5**self.step)  # expect: VX205


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
