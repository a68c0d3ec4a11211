"""A tensor names the layer."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({"0": torch.nn.Linear(4, 2), "1": torch.nn.Linear(4, 2)})

    def forward(self, x, task):
        return self.heads[str(task.item())](x)  # expect: VX111


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.randn(3, 4), torch.tensor(1)
