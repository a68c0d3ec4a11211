"""A baseline network that uses no neighborhoods: each voxel is classified by itself."""

from __future__ import annotations

from flax import nnx

from voxax.geometry import Voxels
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential
from voxax.nn.modules.constructor import Module, own_rngs


class VoxelMLP(Module):
    """MLP on each voxel: ``depth`` times linear, batch normalization, ReLU; then a linear head.

    Args:
      in_channels, out_channels: numbers of input features and of classes.
      width: number of hidden channels.
      depth: number of hidden layers.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        width: int = 128,
        depth: int = 4,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = own_rngs(rngs)
        layers: list[nnx.Module] = []
        for channels in (in_channels, *[width] * (depth - 1)):
            layers += [Linear(channels, width, rngs=rngs), BatchNorm(width), ReLU()]
        self.layers = Sequential(*layers)
        self.head = Linear(width, out_channels, rngs=rngs)

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels of logits ``[capacity, out_channels]``."""
        return self.head(self.layers(voxels))
