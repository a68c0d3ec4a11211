"""Autograd in the forward pass, which torch.export refuses."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = (x**3).sum()
        energy.backward()  # expect: VX192
        return x.grad


model = Model()


def inputs():
    return (torch.arange(4.0),)
