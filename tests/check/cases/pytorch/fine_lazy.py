"""Parameters whose shapes the first call decides."""

import torch

VERDICT = "static"

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.LazyConv1d(3, 2),
    torch.nn.LazyBatchNorm1d(),
    torch.nn.Flatten(),
    torch.nn.LazyLinear(2),
)


def inputs():
    return (torch.arange(24.0).reshape(2, 3, 4) - 5,)
