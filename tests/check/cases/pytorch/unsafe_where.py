"""The side that is not taken has an infinite slope."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def forward(self, p):
        return torch.where(p > 0, p * torch.log(p), 0.0).sum()  # expect: VX307


model = Model()


def inputs():
    return (torch.tensor([0.5, 0.2, 0.3]),)
