"""Python numbers that are only computed with."""

import torch

VERDICT = "static"


def model(x, scale, shift):
    y = x * scale + shift
    y = torch.clamp(y, min=-scale)
    return torch.add(y, x, alpha=scale) ** 2 - torch.full((4,), shift)


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, 0.5, 3.0
