"""The bases of layers and of networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import nn


class MinkowskiModuleBase(nn.Module):
    """Base of MinkowskiEngine's layers."""


class MinkowskiNetwork(nn.Module, ABC):
    """Base of networks of ``D`` spatial axes."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.D = D

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """Return the network's result."""
