"""Autograd in the forward pass, which torch.export refuses."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = self.scale * (x**3).sum()
        (slope,) = torch.autograd.grad(energy, x)  # expect: VX192
        return -slope


model = Model()


def inputs():
    return (torch.arange(4.0),)
