"""Building blocks of residual sparse networks."""

from __future__ import annotations

from typing import Any

from flax import nnx

from voxax.geometry import Voxels
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SpatiallySparseConv


class ConvNormAct(nnx.Module):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        *,
        transposed: bool = False,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        self.conv = SpatiallySparseConv(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            transposed=transposed,
            use_bias=False,
            rngs=rngs,
            **options,
        )
        self.norm = BatchNorm(out_channels)
        self.act = ReLU()

    def __call__(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        return self.act(self.norm(self.conv(voxels, out_voxels)))


class ResidualBlock(nnx.Module):
    """Two 3-wide submanifold convolutions and a shortcut (basic block of He et al. 2016)."""

    def __init__(
        self, in_channels: int, out_channels: int, *, rngs: nnx.Rngs, **options: Any
    ) -> None:
        self.first = ConvNormAct(in_channels, out_channels, rngs=rngs, **options)
        self.second = SpatiallySparseConv(
            out_channels, out_channels, 3, use_bias=False, rngs=rngs, **options
        )
        self.norm = BatchNorm(out_channels)
        self.act = ReLU()
        shortcut: list[nnx.Module] = []
        if in_channels != out_channels:
            dtypes = {k: v for k, v in options.items() if k in ("dtype", "param_dtype")}
            linear = Linear(in_channels, out_channels, use_bias=False, rngs=rngs, **dtypes)
            shortcut = [linear, BatchNorm(out_channels)]
        self.shortcut = Sequential(*shortcut)

    def __call__(self, voxels: Voxels) -> Voxels:
        residual = self.norm(self.second(self.first(voxels)))
        return self.act(residual + self.shortcut(voxels))
