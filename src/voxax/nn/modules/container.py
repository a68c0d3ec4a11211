"""Sequential application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx


class Sequential(nnx.Module):
    """Apply modules (or any callables on Voxels) one after the other."""

    def __init__(self, *layers: Callable[..., Any]) -> None:
        self.layers = nnx.List(list(layers))

    def __call__(self, voxels: Any) -> Any:
        for layer in self.layers:
            voxels = layer(voxels)
        return voxels
