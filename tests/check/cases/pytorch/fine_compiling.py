"""Values are read only where the module is not being compiled."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def forward(self, x, mask):
        if not torch.compiler.is_compiling() and bool(mask.all()):
            mask = None
        if not torch._dynamo.is_compiling():
            assert x.abs().max() < 100
        if mask is not None:
            x = torch.where(mask, x, 0)
        return x.cumsum(0)


model = Model()


def inputs():
    return torch.arange(4.0), torch.tensor([True, True, False, True])
