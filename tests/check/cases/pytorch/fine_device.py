"""Tensors made on the device of another."""

import torch

VERDICT = "static"


def model(x, mask):
    positions = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    mask = mask.to(x.device).to(x.dtype)
    return (x + positions) * mask.to(dtype=x.dtype)


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.ones(3, 1, dtype=torch.bool)
