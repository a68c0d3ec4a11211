"""Operands made safe before where, and by clamping."""

import math

import torch

VERDICT = "static"


def model(x, mask):
    safe = torch.where(x > 0, x, torch.ones_like(x))
    y = torch.where(x > 0, torch.log(safe), torch.zeros_like(x))
    n = x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    z = torch.where(mask, x / n, 0.0)
    w = torch.where(x > 0, torch.sqrt(x.abs() + 1e-6), x)
    d = torch.softmax(x.masked_fill(~mask, -1e9) / math.sqrt(x.shape[-1]), -1)
    return y, z, w, d, torch.where(mask, x / mask.sum().clamp(min=1), 0)


def inputs():
    return torch.arange(6.0).reshape(3, 2), torch.ones(3, 2, dtype=torch.bool)
