"""MinkUNet, the sparse U-Net that most voxel segmentation builds on, and its residual blocks.

Source: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional
Neural Networks", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx

from voxax.geometry import Voxels, cat
from voxax.nn.minkunet_stages import BLOCKS, PLANES, Stage, minkunet_stages
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SpatiallySparseConv


class ConvNormAct(nnx.Module):
    """Convolution without bias, batch normalization, ReLU."""

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


class MinkUNet(nnx.Module):
    """Stem, four levels down by stride 2, four levels up onto the skips' voxels, head.

    Args:
      in_channels, out_channels: input features and classes.
      blocks: residual blocks at each of the eight stages (four down, four up).
      planes: channels of each stage at width 1.
      stem: channels of the stem at width 1.
      width: factor on all channels, rounded to a multiple of 4.
      stem_kernel_size: kernel of the first convolution.
      rngs: None means ``nnx.Rngs(0)``.
      **options: of every convolution: ``ndim``, ``dtype``, ``param_dtype``, ``fwd_algo``,
        ``bwd_algo``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        blocks: Sequence[int] = BLOCKS[34],
        planes: Sequence[int] = PLANES,
        stem: int = 32,
        width: float = 1.0,
        stem_kernel_size: int = 3,
        rngs: nnx.Rngs | None = None,
        **options: Any,
    ) -> None:
        rngs = nnx.Rngs(0) if rngs is None else rngs
        common = {"rngs": rngs, **options}
        stages = minkunet_stages(blocks, planes, stem, width)
        self.stem = ConvNormAct(in_channels, stages.stem, stem_kernel_size, **common)
        self.stem_second = ConvNormAct(stages.stem, stages.stem, 3, **common)

        def level(stage: Stage, **direction: bool) -> tuple[ConvNormAct, nnx.List]:
            convolution = ConvNormAct(*stage.convolution, 2, 2, **direction, **common)
            return convolution, nnx.List([ResidualBlock(*c, **common) for c in stage.blocks])

        down, down_blocks = zip(*map(level, stages.down), strict=True)
        up, up_blocks = zip(*[level(s, transposed=True) for s in stages.up], strict=True)
        self.down, self.down_blocks = nnx.List(down), nnx.List(down_blocks)
        self.up, self.up_blocks = nnx.List(up), nnx.List(up_blocks)
        dtypes = {k: v for k, v in options.items() if k in ("dtype", "param_dtype")}
        self.head = Linear(stages.head, out_channels, rngs=rngs, **dtypes)

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return logits ``[capacity, out_channels]`` on the input's voxels."""
        with jax.named_scope("stem"):
            voxels = self.stem_second(self.stem(voxels))
        skips = []
        for level, (down, residual) in enumerate(zip(self.down, self.down_blocks, strict=True)):
            with jax.named_scope(f"down{level + 1}"):
                skips.append(voxels)
                voxels = down(voxels)
                for block in residual:
                    voxels = block(voxels)
        for level, (up, residual) in enumerate(zip(self.up, self.up_blocks, strict=True)):
            with jax.named_scope(f"up{4 - level}"):
                skip = skips.pop()
                voxels = cat([up(voxels, skip), skip])
                for block in residual:
                    voxels = block(voxels)
        with jax.named_scope("head"):
            return self.head(voxels)


def MinkUNet14(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return a MinkUNet with one residual block a stage. Options as in :class:`MinkUNet`."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[14], **options)


def MinkUNet18(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return a MinkUNet with two residual blocks a stage. Options as in :class:`MinkUNet`."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[18], **options)


def MinkUNet34(in_channels: int, out_channels: int, **options: Any) -> MinkUNet:
    """Return a MinkUNet with 2, 3, 4, 6 blocks down, 2 up. Options as in :class:`MinkUNet`."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[34], **options)
