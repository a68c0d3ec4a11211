"""Branches on configuration and on the training flag."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.mode, self.depth = "relu", 3

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x)
        if self.training:
            x = torch.nn.functional.dropout(x, 0.5)
        if mask is not None:
            x = x * mask
        if self.mode == "relu" and self.depth > 2:
            x = torch.relu(x)
        return x[:, : self.depth]


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
