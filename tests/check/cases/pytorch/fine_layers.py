"""Layers of the library, in training."""

import torch

VERDICT = "static"


torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Dropout(0.1),
    torch.nn.Flatten(),
    torch.nn.Linear(8 * 16, 5),
)


def inputs():
    return (torch.randn(2, 3, 8, 8),)
