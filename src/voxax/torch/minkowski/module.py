"""Define the base classes of MinkowskiEngine's layers and networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import nn


class MinkowskiModuleBase(nn.Module):
    """Base class of the layers with MinkowskiEngine's names; adds nothing to ``nn.Module``."""


class MinkowskiNetwork(nn.Module, ABC):
    """Abstract base class of networks with ``D`` spatial axes."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.D = D

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """Return the network's output; subclasses must override this."""
