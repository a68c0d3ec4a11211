"""Questions about types, layouts and modes."""

import torch

VERDICT = "static"


def model(x):
    if isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.is_floating_point():
        x = x.float()
    if x.requires_grad:
        x = x.detach()
    if not torch.is_grad_enabled():
        x = x + 1
    if x.is_contiguous() and x.numel():
        x = x.view(-1)
    for s in x.shape:
        x = x + s
    return x.to(torch.float32).type_as(x)


def inputs():
    return (torch.arange(4.0),)
