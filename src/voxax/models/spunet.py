"""SpUNet, the sparse residual U-Net of Pointcept (SpUNet-v1m1), which indoor segmentation uses.

Sources: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional Neural
Networks", CVPR 2019, whose MinkUNet34C it follows; Pointcept Contributors, "Pointcept: A Codebase
for Point Cloud Perception Research", 2023.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from flax import nnx
from flax.core import FrozenDict

from voxax.errors import InputError
from voxax.interop.sources import (
    REFERENCE,
    TORCH,
    Setting,
    Source,
    norm_settings,
    renaming,
    torch_pointcloud_sources,
)
from voxax.interop.spconv import Spconv
from voxax.models.minkunet import ConvNormAct, UNet
from voxax.models.minkunet_stages import BLOCKS, PLANES, Stage
from voxax.nn.arguments import static
from voxax.nn.modules import Linear
from voxax.nn.modules.constructor import own_rngs
from voxax.nn.modules.sparse_convs import NetworkOptions, dtypes_of


class SpUNet(UNet):
    """Stem of kernel size 5, levels down by stride 2, levels up onto the skips' voxels, head.

    A strided convolution leads to the channels of its level, as MinkUNet's does not.

    Args:
      in_channels, out_channels: input features and classes.
      blocks: residual blocks of each stage: down, finest level first, then up, deepest first.
      channels: of each stage.
      stem: channels of the stem.
      stem_kernel_size: kernel of the first convolution.
      norm: arguments of every batch normalization.
      rngs: None takes a key that no other layer has.
      **options: of every convolution, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: blocks and channels of different numbers, or an odd number of stages.

    Examples:
      >>> model = models.SpUNet(4, 20, blocks=(1,) * 4, channels=(16, 32, 32, 16), rngs=nnx.Rngs(0))
      >>> model(voxels).num_channels
      20
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        blocks: Sequence[int] = BLOCKS[34],
        channels: Sequence[int] = PLANES,
        stem: int = 32,
        stem_kernel_size: int = 5,
        norm: Mapping[str, Any] = FrozenDict(epsilon=1e-3, momentum=0.99),
        rngs: nnx.Rngs | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        blocks, channels = static(blocks), static(channels)
        levels, odd = divmod(len(blocks), 2)
        if odd or not levels or len(channels) != len(blocks):
            raise InputError(
                f"{len(blocks)} blocks and {len(channels)} channels: give both for each stage, as "
                "many stages up as down"
            )
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"rngs": rngs, "norm": norm, **options}
        inputs = (stem, *channels[:-1])  # of each stage's strided convolution
        skips = (*[0] * levels, *reversed(inputs[:levels]))  # joined before its first block
        stages = [
            Stage((c_in, c), tuple((c + (skip if i == 0 else 0), c) for i in range(number)))
            for c_in, c, skip, number in zip(inputs, channels, skips, blocks, strict=True)
        ]
        self.stem = ConvNormAct(in_channels, stem, stem_kernel_size, **common)
        self._make_levels(stages[:levels], stages[levels:], common)
        self.head = Linear(channels[-1], out_channels, rngs=rngs, **dtypes_of(options))

    def sources(self) -> dict[str, Source]:
        """Return how Pointcept, by its version of SpUNet, and torch-pointcloud store it."""
        last = len(self.down) - 1

        def level(found: re.Match[str]) -> str:  # they count levels from the finest on both ways
            return f"{found[1]}.{last - int(found[2])}"

        layers = (
            (r"^stem", "conv_input"),
            (r"^(up|up_blocks)\.(\d+)", level),
            (r"^down_blocks\.(\d+)\.", r"enc.\1.block"),
            (r"^up_blocks\.(\d+)\.", r"dec.\1.block"),
            (r"\.first\.conv$", ".conv1"),
            (r"\.first\.norm$", ".norm1"),
            (r"\.second$", ".conv2"),
            (r"(block\d+)\.norm$", r"\1.norm2"),
            (r"\.shortcut\.layers\.", ".proj."),
            (r"\.conv$", ".0"),
            (r"\.norm$", ".1"),
        )
        pointcept = renaming(*layers, (r"\.norm(\d)$", r".bn\1"), (r"^head$", "final"))
        torch_pointcloud = renaming(
            *layers,
            (r"^(conv_input|down|enc)\b", r"encoder.\1"),
            (r"^(up|dec)\b", r"decoder.\1"),
            (r"(\.1|\.norm\d)$", r"\1.module"),
        )
        spconv = Spconv(pointwise=".")
        whole = (Setting("^$", "drops_last_plane", False),)
        clipped = (Setting("^$", "drops_last_plane", True),)
        others = torch_pointcloud_sources(spconv, torch_pointcloud)
        return {
            "pointcept": Source(spconv, pointcept, settings=norm_settings(*REFERENCE) + whole),
            "pointcept-v1m2": Source(spconv, pointcept, settings=norm_settings(*TORCH) + clipped),
            **{n: dataclasses.replace(s, settings=s.settings + whole) for n, s in others.items()},
        }
