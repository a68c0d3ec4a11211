"""Lengths of ragged rows."""

import torch

VERDICT = "not static"


def model(x, lengths):
    parts = torch.split(x, lengths.tolist())  # expect: VX109
    return torch.stack([part.sum() for part in parts])


def inputs():
    return torch.arange(6.0), torch.tensor([1, 3, 2])
