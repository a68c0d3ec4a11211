"""Sizes of MinkUNet's stages.

Source: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional
Neural Networks", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voxax import _limits
from voxax.errors import InputError

PLANES = (32, 64, 128, 256, 256, 128, 96, 96)
"""Channels of the eight stages, four down and four up."""
BLOCKS = {14: (1,) * 8, 18: (2,) * 8, 34: (2, 3, 4, 6, 2, 2, 2, 2)}
"""Residual blocks of the eight stages, by the name of the network."""


class Stage(NamedTuple):
    """One stage: a strided convolution to its level, then residual blocks on it.

    Attributes:
      convolution: input and output channels.
      blocks: input and output channels of each residual block.
    """

    convolution: tuple[int, int]
    blocks: tuple[tuple[int, int], ...]


class Stages(NamedTuple):
    """The network: channels of the stem and the head, stages down and up."""

    stem: int
    down: tuple[Stage, ...]
    up: tuple[Stage, ...]
    head: int


def minkunet_stages(
    blocks: Sequence[int], planes: Sequence[int], stem: int, width: float
) -> Stages:
    """Return the sizes of a MinkUNet.

    Args:
      blocks: residual blocks at each of the eight stages (four down, four up).
      planes: channels of each stage at width 1.
      stem: channels of the stem at width 1.
      width: factor on all channels, rounded to a multiple of 4.

    Raises:
      InputError: another number of stages, or a width outside 0.01 to 32.
    """
    if len(blocks) != 8 or len(planes) != 8:
        raise InputError(
            f"MinkUNet has eight stages (four down, four up): got {len(blocks)} blocks and "
            f"{len(planes)} planes"
        )
    _limits.WIDTH.check("width", width, 0.01)
    channels, *widths = [max(4, round(p * width / 4) * 4) for p in (stem, *planes)]
    stem_width, skips, stages = channels, [], []
    for index, (c_out, number) in enumerate(zip(widths, blocks, strict=True)):
        if index < 4:
            skips.append(channels)
            convolution, first = (channels, channels), channels
        else:
            convolution, first = (channels, c_out), c_out + skips.pop()
        sizes = (first, *[c_out] * (number - 1))
        stages.append(Stage(convolution, tuple((c_in, c_out) for c_in in sizes)))
        channels = c_out
    return Stages(stem_width, tuple(stages[:4]), tuple(stages[4:]), channels)
