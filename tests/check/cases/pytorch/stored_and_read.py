"""A tensor that one call stores and the next one reads, as itself and as a view."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.zeros(4)
        self.rows = [torch.zeros(3, 4)]

    def forward(self, x):
        change = x.mean(0) - self.before + self.rows[0][1]
        self.before = x.mean(0)  # expect: VX301
        self.rows[0] = x * 2  # expect: VX301
        return change


model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
