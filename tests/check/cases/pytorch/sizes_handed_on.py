"""A size that depends on data is handed on, and nothing asks for it."""

import torch

VERDICT = "bounded dynamic"


def model(x):
    kept = x[x[:, 0] > 1]  # expect: VX105
    n, c = kept.shape
    y = kept.view(n, -1) @ torch.ones(c, 2)
    if c > 2 and kept.dim() == 2 and y.shape[1] == 2:
        y = y + torch.arange(n)[:, None] / n
    return y.mean(0), torch.nn.functional.layer_norm(kept, (c,)).sum()


def inputs():
    return (torch.arange(12.0).reshape(4, 3),)
