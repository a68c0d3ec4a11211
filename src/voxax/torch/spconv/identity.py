"""The module that does nothing."""

from torch import nn


class Identity(nn.Module):
    """Module that returns its argument."""

    def forward(self, input: object) -> object:
        return input
