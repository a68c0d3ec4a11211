"""Select a layer by a value."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, which):
        return self.layers[which](x)  # expect: VX111


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.tensor(1)
