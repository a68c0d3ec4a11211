"""Model (b): the slice ends where a Python number says."""

import torch

VERDICT = "static per value"
STATIC = ("size_factor",)


class Model(torch.nn.Module):
    def forward(self, output, size_factor):
        return output[: int(size_factor * 5)]  # expect: VX201


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(24.0).reshape(8, 3), 0.75
