"""The number is taken first, and tested some lines later."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        largest = x.max().item()  # expect: VX101
        y = self.linear(x)
        if largest > 3:
            y = y / largest
        return y


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
