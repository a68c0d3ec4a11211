"""Autograd in the forward pass, which torch.export refuses."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh())

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = self.net(x).square().sum()
        (slope,) = torch.autograd.grad(energy, x)  # expect: VX192
        return energy, -slope


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
