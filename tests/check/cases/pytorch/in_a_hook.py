"""A hook branches on the output."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.register_forward_hook(self.after)

    def after(self, module, args, out):
        if out.mean() > 0:  # expect: VX101
            return out * 2
        return out

    def forward(self, x):
        return self.linear(x)


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.randn(3, 4),)
