"""MinkUNet and SpUNet, the sparse U-Nets that most voxel segmentation builds on, and their blocks.

Sources: Choy, Gwak, Savarese, "4D Spatio-Temporal ConvNets: Minkowski Convolutional Neural
Networks", CVPR 2019; Pointcept Contributors, "Pointcept: A Codebase for Point Cloud Perception
Research", 2023, whose SpUNet follows MinkUNet34C.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import FrozenDict

from voxax import _limits
from voxax.errors import InputError
from voxax.geometry import Voxels, cat, prune
from voxax.geometry.branches import branch
from voxax.interop.minkowski import Minkowski
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
from voxax.interop.torchsparse import TorchSparse
from voxax.nn.arguments import static
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SpatiallySparseConv
from voxax.nn.modules.constructor import Module, own_rngs, with_signature
from voxax.nn.modules.sequential import conv_norm_act
from voxax.nn.modules.sparse_convs import ConvOptions, NetworkOptions, dtypes_of

PLANES = (32, 64, 128, 256, 256, 128, 96, 96)
"""Channels of the eight stages, four down and four up."""
BLOCKS = {14: (1,) * 8, 18: (2,) * 8, 34: (2, 3, 4, 6, 2, 2, 2, 2)}
"""Number of residual blocks of each of the eight stages, for MinkUNet14, 18 and 34."""


class Stage(NamedTuple):
    """Channel numbers of one U-Net stage, a strided convolution and then residual blocks.

    Attributes:
      convolution: input and output channels of the strided convolution.
      blocks: input and output channels of each residual block.
    """

    convolution: tuple[int, int]
    blocks: tuple[tuple[int, int], ...]


def _minkunet_stages(
    blocks: Sequence[int], planes: Sequence[int], stem: int, width: float
) -> tuple[int, list[Stage], int]:
    """Return the channels of a MinkUNet: of its stem, its eight stages, and the input of its head.

    The arguments are those of :class:`MinkUNet`.
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
    return stem_width, stages, channels


class ConvNormAct(Module):
    """Sparse convolution, then batch normalization and ReLU.

    Args:
      in_channels, out_channels, kernel_size, stride, transposed: arguments of the convolution.
      use_bias: whether the convolution has a bias. Batch normalization cancels its effect.
      norm: arguments of :class:`voxax.nn.modules.BatchNorm`, such as ``{"epsilon": 1e-3}``.
      rngs: streams for the initial weights.
      **options: other arguments of the convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        *,
        transposed: bool = False,
        use_bias: bool = False,
        norm: Mapping[str, Any] = FrozenDict(),
        rngs: nnx.Rngs,
        **options: Unpack[ConvOptions],
    ) -> None:
        self.conv = SpatiallySparseConv(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            transposed=transposed,
            use_bias=use_bias,
            rngs=rngs,
            **options,
        )
        self.norm = BatchNorm(out_channels, **norm)
        self.act = ReLU()

    def __call__(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        return conv_norm_act(self.conv, self.norm, self.act, voxels, out_voxels)


class ResidualBlock(Module):
    """Two submanifold convolutions of kernel size 3 and a shortcut (He et al. 2016, basic block).

    The arguments are those of :class:`ConvNormAct`. If input and output channels differ, the
    shortcut is a linear layer and a batch normalization.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        use_bias: bool = False,
        norm: Mapping[str, Any] = FrozenDict(),
        rngs: nnx.Rngs,
        **options: Unpack[ConvOptions],
    ) -> None:
        common = {"use_bias": use_bias, "rngs": rngs, **options}
        self.first = ConvNormAct(in_channels, out_channels, norm=norm, **common)
        self.second = SpatiallySparseConv(out_channels, out_channels, 3, **common)
        self.norm = BatchNorm(out_channels, **norm)
        self.act = ReLU()
        shortcut: list[nnx.Module] = []
        if in_channels != out_channels:
            own = {"use_bias": False, "rngs": rngs, **dtypes_of(options)}
            linear = Linear(in_channels, out_channels, **own)
            shortcut = [linear, BatchNorm(out_channels, **norm)]
        self.shortcut = Sequential(*shortcut)

    def __call__(self, voxels: Voxels) -> Voxels:
        voxels, shortcut = branch(voxels)
        added = functools.partial(self.shortcut, shortcut)
        return conv_norm_act(self.second, self.norm, self.act, self.first(voxels), shortcut=added)


class UNet(Module):
    """Base class of sparse U-Nets: stem, levels of stride 2 down, levels up with skips, head.

    Subclasses create the layers.

    Attributes:
      stem: first module, on the input's voxels.
      down, down_blocks: strided convolution to each level, and the residual blocks after it.
      up, up_blocks: transposed convolution to each level, deepest first, and the residual blocks
        after it.
      head: last module, on the input's voxels.
      drops_last_plane: whether a strided convolution ignores the last plane of voxels along an axis
        with an odd number of cells, as in spconv. Cells are counted from 0 to the last voxel of the
        batch.
    """

    drops_last_plane: bool = False

    stem: Callable[[Voxels], Voxels]
    down: nnx.List
    down_blocks: nnx.List
    up: nnx.List
    up_blocks: nnx.List
    head: Callable[[Voxels], Voxels]

    def _make_levels(
        self, down: Iterable[Stage], up: Iterable[Stage], common: dict[str, Any]
    ) -> None:
        def level(stage: Stage, **direction: bool) -> tuple[ConvNormAct, nnx.List]:
            convolution = ConvNormAct(*stage.convolution, 2, 2, **direction, **common)
            return convolution, nnx.List([ResidualBlock(*c, **common) for c in stage.blocks])

        self.down, self.down_blocks = map(nnx.List, zip(*map(level, down), strict=True))
        levels = [level(stage, transposed=True) for stage in up]
        self.up, self.up_blocks = map(nnx.List, zip(*levels, strict=True))

    def _stem(self, voxels: Voxels) -> Voxels:
        return self.stem(voxels)

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels of logits ``[capacity, out_channels]``, at the input's voxels."""
        with jax.named_scope("stem"):
            voxels = self._stem(voxels)
        skips, cells = [], _cells(voxels) if self.drops_last_plane else None
        for level, (down, residual) in enumerate(zip(self.down, self.down_blocks, strict=True)):
            with jax.named_scope(f"down{level + 1}"):
                voxels, skip = branch(voxels)
                skips.append(skip)
                if cells is not None:
                    cells = cells // 2
                    inside = voxels.coords[:, 1:] < 2 * cells[None]
                    voxels = prune(voxels, jnp.all(inside, axis=1))
                voxels = down(voxels)
                for block in residual:
                    voxels = block(voxels)
        for up, residual in zip(self.up, self.up_blocks, strict=True):
            with jax.named_scope(f"up{len(skips)}"):
                skip = skips.pop()
                voxels = cat([up(voxels, skip), skip])
                for block in residual:
                    voxels = block(voxels)
        with jax.named_scope("head"):
            return self.head(voxels)


def _cells(voxels: Voxels) -> jax.Array:
    """Return one more than the largest coordinate of all voxels along each axis, ``int32[D]``.

    It is 0 if there are no voxels.
    """
    last = jnp.where(voxels.valid[:, None], voxels.coords[:, 1:], -1)
    return jnp.max(last, axis=0, initial=-1) + 1


class MinkUNet(UNet):
    """MinkUNet, a sparse U-Net: stem, four levels of stride 2 down, four up with skips, head.

    Args:
      in_channels, out_channels: number of input features and of classes.
      blocks: number of residual blocks at each of the eight stages (four down, four up).
      planes: channels of each stage at width 1.
      stem: channels of the stem, which precedes the first stage, at width 1.
      width: factor on all channels, which are rounded to a multiple of 4, at least 4.
      stem_kernel_size: kernel size of the first convolution.
      stem_depth: number of convolutions in the stem: 2 as in SPVNAS, 1 as in MinkowskiEngine.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every convolution, see :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: ``blocks`` or ``planes`` do not have eight entries, ``stem_depth`` is not 1 or 2,
        or ``width`` is outside 0.01 to 32.

    Examples:
      >>> model = models.MinkUNet(4, 20, blocks=(1,) * 8, width=0.25, rngs=nnx.Rngs(0))
      >>> model(voxels).num_channels
      20
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
        stem_depth: Literal[1, 2] = 2,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        common: dict[str, Any] = {"rngs": rngs, **options}
        first, stages, last = _minkunet_stages(blocks, planes, stem, width)
        self.stem = ConvNormAct(in_channels, first, stem_kernel_size, **common)
        if stem_depth not in (1, 2):
            raise InputError(f"stem_depth={stem_depth} must be 1 or 2")
        self.stem_second: Callable[[Voxels], Voxels] = Sequential()
        if stem_depth == 2:
            self.stem_second = ConvNormAct(first, first, 3, **common)
        self._make_levels(stages[:4], stages[4:], common)
        self.head = Linear(last, out_channels, rngs=rngs, **dtypes_of(options))

    def _stem(self, voxels: Voxels) -> Voxels:
        return self.stem_second(self.stem(voxels))

    def sources(self) -> dict[str, Source]:
        """Return how each supported codebase names and stores the weights of this network.

        The result is a dict from the codebase's name to its ``Source``. The codebases are SPVNAS
        and mmdetection3d if the stem has two convolutions, else MinkowskiEngine. mmdetection3d
        with TorchSparse and with spconv are two entries, which differ in ``drops_last_plane``.
        """
        if isinstance(self.stem_second, Sequential):
            peer, names = Minkowski(pointwise="."), _minkowski_names()
            return {"minkowski": Source(peer, names, settings=norm_settings(*TORCH))}
        peer, names = TorchSparse(pointwise="shortcut"), _spvnas_names()
        norms = norm_settings(*TORCH)
        settings = (*norms, Setting("^$", "drops_last_plane", False))
        clipped = (*norms, Setting("^$", "drops_last_plane", True))
        spconv = Spconv(pointwise="shortcut")
        return {
            "spvnas": Source(peer, names, settings=settings),
            "mmdetection3d": Source(peer, _mmdetection3d_names(spconv=False), settings=settings),
            "mmdetection3d-spconv": Source(
                spconv, _mmdetection3d_names(spconv=True), settings=clipped
            ),
        }


# Names of a residual block's layers in codebases with TorchSparse.
_NET = (
    (r"\.first\.", "."),
    (r"\.second$", ".net.3"),
    (r"\.conv$", ".net.0"),
    (r"\.norm$", ".net.1"),
)


def _spvnas_names() -> Callable[[str], str]:
    def block(found: re.Match[str]) -> str:
        return f"stage{int(found[1]) + 1}.{int(found[2]) + 1}."

    return renaming(
        (r"^stem_second\.conv$", "stem.3"),
        (r"^stem_second\.norm$", "stem.4"),
        (r"^stem\.conv$", "stem.0"),
        (r"^stem\.norm$", "stem.1"),
        (r"^down_blocks\.(\d+)\.(\d+)\.", block),
        (r"^up_blocks\.(\d+)\.", lambda found: f"up{int(found[1]) + 1}.1."),
        (r"^down\.(\d+)\.", lambda found: f"stage{int(found[1]) + 1}.0."),
        (r"^up\.(\d+)\.", lambda found: f"up{int(found[1]) + 1}.0."),
        (r"^(stage\d+\.[1-9]\d*|up\d+\.1\.\d+)\.norm$", r"\1.net.4"),
        *_NET,
        (r"\.shortcut\.layers\.", ".downsample."),
        (r"^head$", "classifier.0"),
    )


def _mmdetection3d_names(*, spconv: bool) -> Callable[[str], str]:
    block = r"^(encoder\.\d+\.[1-9]\d*|decoder\.\d+\.1\.\d+)\.norm$"
    inside: tuple[tuple[str, str], ...] = ((block, r"\1.net.4"), *_NET)
    if spconv:
        inside = (
            (block, r"\1.bn2"),
            (r"\.first\.conv$", ".conv1"),
            (r"\.first\.norm$", ".bn1"),
            (r"\.second$", ".conv2"),
            (r"\.conv$", ".0"),
            (r"\.norm$", ".1"),
        )
    return renaming(
        (r"^stem_second\b", "conv_input.1"),
        (r"^stem\b", "conv_input.0"),
        (r"^down_blocks\.(\d+)\.(\d+)", lambda m: f"encoder.{m[1]}.{int(m[2]) + 1}"),
        (r"^up_blocks\.(\d+)\.(\d+)", r"decoder.\1.1.\2"),
        (r"^down\.(\d+)", r"encoder.\1.0"),
        (r"^up\.(\d+)", r"decoder.\1.0"),
        *inside,
        (r"\.shortcut\.layers\.", ".downsample."),
        (r"^(?!head)", "backbone."),
        (r"^head$", "decode_head.conv_seg"),
    )


def _minkowski_names() -> Callable[[str], str]:
    def down(found: re.Match[str]) -> str:
        level = int(found[1])
        return {"conv": f"conv{level + 1}p{2**level}s2", "norm": f"bn{level + 1}"}[found[2]]

    def up(found: re.Match[str]) -> str:
        level = int(found[1])
        return {"conv": f"convtr{level + 4}p{16 >> level}s2", "norm": f"bntr{level + 4}"}[found[2]]

    return renaming(
        (r"^stem\.conv$", "conv0p1s1"),
        (r"^stem\.norm$", "bn0"),
        (r"^down\.(\d+)\.(conv|norm)$", down),
        (r"^up\.(\d+)\.(conv|norm)$", up),
        (r"\.first\.conv$", ".conv1"),
        (r"\.first\.norm$", ".norm1"),
        (r"\.second$", ".conv2"),
        (r"^(down|up)_blocks\.(\d+)\.(\d+)\.norm$", r"\1_blocks.\2.\3.norm2"),
        (r"\.shortcut\.layers\.", ".downsample."),
        (r"^down_blocks\.(\d+)\.", lambda found: f"block{int(found[1]) + 1}."),
        (r"^up_blocks\.(\d+)\.", lambda found: f"block{int(found[1]) + 5}."),
        (r"^head$", "final"),
    )


class MinkUNetOptions(NetworkOptions, total=False):
    """Keyword arguments of :class:`MinkUNet` except ``blocks``."""

    planes: Sequence[int]
    stem: int
    width: float
    stem_kernel_size: int
    stem_depth: Literal[1, 2]
    rngs: nnx.Rngs | None


@with_signature
def MinkUNet14(in_channels: int, out_channels: int, **options: Unpack[MinkUNetOptions]) -> MinkUNet:
    """Return a MinkUNet with one residual block per stage. Arguments as in :class:`MinkUNet`."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[14], **options)


@with_signature
def MinkUNet18(in_channels: int, out_channels: int, **options: Unpack[MinkUNetOptions]) -> MinkUNet:
    """Return a MinkUNet with two residual blocks per stage. Arguments as in :class:`MinkUNet`.

    Examples:
      >>> model = models.MinkUNet18(4, 20, width=0.25, rngs=nnx.Rngs(0))
      >>> model(voxels).num_channels
      20
    """
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[18], **options)


@with_signature
def MinkUNet34(in_channels: int, out_channels: int, **options: Unpack[MinkUNetOptions]) -> MinkUNet:
    """Return a MinkUNet with 2, 3, 4, 6, 2, 2, 2, 2 blocks. Arguments as in :class:`MinkUNet`."""
    return MinkUNet(in_channels, out_channels, blocks=BLOCKS[34], **options)


class SpUNet(UNet):
    """SpUNet, Pointcept's sparse U-Net: stem, levels of stride 2 down, levels up with skips, head.

    A strided convolution changes the number of channels to that of its level. In MinkUNet the first
    residual block of the level does so.

    Args:
      in_channels, out_channels: number of input features and of classes.
      blocks: number of residual blocks of each stage: down, finest level first, then up, deepest
        first.
      channels: channels of each stage.
      stem: channels of the first convolution.
      stem_kernel_size: kernel size of the first convolution.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every convolution, see :class:`voxax.nn.modules.SpatiallySparseConv`.

    Raises:
      InputError: ``blocks`` and ``channels`` differ in length, or the number of stages is odd or 0.

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
        """Return how Pointcept and torch-pointcloud name and store the weights of this network.

        The result is a dict from a version's name, such as ``pointcept-v1m2``, to its ``Source``.
        """
        last = len(self.down) - 1

        def level(found: re.Match[str]) -> str:  # the codebases count from the finest
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
