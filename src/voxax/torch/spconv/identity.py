"""The module that does nothing."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn


class Identity(nn.Module):
    """Returns its argument."""

    def forward(self, input: Any) -> Any:
        """Return the argument."""
        return input

    def input_spatial_size(self, out_size: Sequence[int]) -> Sequence[int]:
        """Return the argument."""
        return out_size
