"""The sparse backbones of voxel detectors with a stride of 8 along x and y, as in OpenPCDet.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018; OpenPCDet
Development Team, "OpenPCDet: An Open-source Toolbox for 3D Object Detection", 2020.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import FrozenDict

from voxax import _compat
from voxax.coords import is_valid
from voxax.errors import InputError
from voxax.geometry import KernelSpec, Voxels, kernel_map
from voxax.interop.sources import (
    REFERENCE,
    Source,
    norm_settings,
    renaming,
    torch_pointcloud_sources,
)
from voxax.interop.spconv import Spconv, spconv_offsets
from voxax.models.minkunet import ConvNormAct, ResidualBlock
from voxax.nn.arguments import static
from voxax.nn.modules.constructor import Module, own_rngs, with_signature
from voxax.nn.modules.sequential import conv_norm_act
from voxax.nn.modules.sparse_convs import LayerOptions

NORM: Mapping[str, Any] = FrozenDict(epsilon=1e-3, momentum=0.99)
"""Arguments of the batch normalizations in detectors."""


class GrowingConv(ConvNormAct):
    """:class:`ConvNormAct` with an output at each site whose kernel window has an input voxel.

    spconv calls such a convolution ``SparseConv3d``.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size, stride, padding: integers, or one integer per axis.
      grid: numbers of cells of the input along each axis. Sites outside get no output.
      **options: as for :class:`ConvNormAct`.

    Attributes:
      grid: numbers of cells of the output along each axis.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        grid: Sequence[int],
        **options: Any,
    ) -> None:
        relation: dict[str, Any] = {
            "kernel_shape": spconv_offsets(kernel_size, padding, ndim=len(grid)),
            "generative": True,
            "spatial_shape": tuple(grid),
        }
        super().__init__(in_channels, out_channels, stride=stride, **relation, **options)
        reached = KernelSpec.make(len(grid), stride=stride, **relation).output_shape
        assert reached is not None
        self.grid: tuple[int, ...] = reached
        if min(reached) < 1:
            raise InputError(
                f"a grid of {'x'.join(map(str, grid))} cells is too small for a kernel of size "
                f"{kernel_size} with stride {stride} and padding {padding}: give a larger grid="
            )

    def within(self, voxels: Voxels, capacity: int) -> Voxels:
        """Run the layer on ``voxels``; return Voxels with ``capacity`` rows.

        Each call makes a kernel map of this output capacity.
        """
        reached = kernel_map(voxels, capacity=capacity, **self.conv.relation)
        return conv_norm_act(self.conv, self.norm, self.act, voxels, kernel_map=reached)


def stage(
    in_channels: int,
    out_channels: int,
    grid: Sequence[int],
    *,
    kernel_size: int = 3,
    padding: int | Sequence[int] = 1,
    residual: bool,
    common: Mapping[str, Any],
) -> tuple[nnx.List, tuple[int, ...]]:
    """Return the layers of a level, and the numbers of cells of its grid along each axis.

    The layers are a :class:`GrowingConv` of stride 2, then two layers of :func:`blocks`.

    Args:
      in_channels, out_channels: numbers of channels of the level's input and output.
      grid: numbers of cells of the previous level's grid along each axis.
      kernel_size, padding: kernel size and padding of the strided convolution.
      residual: whether the two layers are residual blocks.
      common: more arguments of all layers. ``use_bias`` does not affect the strided convolution.
    """
    plain = {k: v for k, v in common.items() if k != "use_bias"}
    down = GrowingConv(in_channels, out_channels, kernel_size, 2, padding, grid, **plain)
    return nnx.List([down, *blocks(out_channels, 2, residual, common)]), down.grid


def blocks(
    channels: int, number: int, residual: bool, common: Mapping[str, Any]
) -> list[nnx.Module]:
    """Return ``number`` submanifold convolutions, or residual blocks if ``residual``.

    All have ``channels`` input and output channels, and the arguments in ``common``. Residual
    blocks have biases unless ``common`` has ``use_bias``.
    """
    if residual:
        common = {"use_bias": True, **common}
        return [ResidualBlock(channels, channels, **common) for _ in range(number)]
    return [ConvNormAct(channels, channels, **common) for _ in range(number)]


def run_stages(stages: Iterable[nnx.List], voxels: Voxels, name: str = "stage") -> list[Voxels]:
    """Run the lists of layers in ``stages`` in turn; return the voxels after each list.

    In profiles the lists are called ``name`` and a number from 1 on.
    """
    found = []
    for number, layers in enumerate(stages):
        with jax.named_scope(f"{name}{number + 1}"):
            for layer in layers:
                voxels = layer(voxels)
        found.append(voxels)
    return found


def backbone_names(residual: bool) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return two functions, from a layer's path to its OpenPCDet and torch-pointcloud names.

    ``residual`` is whether the backbone has residual blocks.
    """
    second = ((r"^(stages\.0\.\d+|stages\.\d+\.[1-9])\.norm$", r"\1.norm2"),) if residual else ()
    layers = (
        *second,
        (r"\.first\.conv$", ".conv1"),
        (r"\.first\.norm$", ".norm1"),
        (r"\.second$", ".conv2"),
        (r"\.conv$", ".0"),
        (r"\.norm$", ".1"),
        (r"^stem\b", "conv_input"),
        (r"^out\b", "conv_out"),
        (r"^stages\.(\d+)", lambda found: f"conv{int(found[1]) + 1}"),
    )
    openpcdet = renaming(*layers, (r"\.norm(\d)$", r".bn\1"))
    return openpcdet, renaming(*layers, (r"(\.1|\.norm\d)$", r"\1.module"))


class VoxelBackBone8x(Module):
    """Sparse 3-D backbone of detectors: stem, four levels of strides 1, 2, 4, 8, and a last layer.

    The last layer halves the height. Strided convolutions have an output at each site in the grid
    whose window has a voxel. Voxel coordinates are x, y, z and count from the grid's lower corner.

    Args:
      in_channels: number of features of the voxels.
      grid: numbers of cells along x, y and z, which are the range divided by the voxel size. One
        cell is added along z.
      channels: channels of the four levels.
      out_channels: channels of the output.
      residual: whether to use residual blocks in place of single convolutions.
      block_bias: whether the convolutions in residual blocks have a bias.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of all convolutions, as in :class:`voxax.nn.modules.SpatiallySparseConv`.

    Attributes:
      grid: numbers of cells of the output along x, y and z.

    Raises:
      InputError: ``grid`` is too small or does not have 3 axes, or ``channels`` not 4 levels.
    """

    def __init__(
        self,
        in_channels: int,
        grid: Sequence[int],
        *,
        channels: Sequence[int] = (16, 32, 64, 64),
        out_channels: int = 128,
        residual: bool = False,
        block_bias: bool = True,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        shape, channels = grid_with_top(grid), static(channels)
        if len(channels) != 4:
            raise InputError(f"channels={channels} must have one entry for each of 4 levels")
        common: dict[str, Any] = {"norm": norm, "rngs": own_rngs(rngs), **options}
        first = channels[0]
        self.residual = residual
        self.stem = ConvNormAct(in_channels, first, **common)
        inner = common | ({"use_bias": block_bias} if residual else {})
        stages = [nnx.List(blocks(first, 2 if residual else 1, residual, inner))]
        paddings = (1, 1, (1, 1, 0))  # the last level has no padding along z
        for c_in, c_out, padding in zip(channels, channels[1:], paddings, strict=False):
            layers, shape = stage(
                c_in, c_out, shape, padding=padding, residual=residual, common=inner
            )
            stages.append(layers)
        self.stages, self.in_grid = nnx.List(stages), grid_with_top(grid)
        self.out = GrowingConv(channels[-1], out_channels, (1, 1, 3), (1, 1, 2), 0, shape, **common)
        self.grid = self.out.grid
        self.out_channels = out_channels

    def levels(self, voxels: Voxels) -> tuple[Voxels, ...]:
        """Return the voxels of the four levels, and as fifth the voxels of the output.

        Raises:
          InputError: voxels lie outside of the grid, see :func:`inside_grid`.
        """
        found = run_stages(self.stages, self.stem(inside_grid(voxels, self.in_grid)))
        return (*found, self.out(found[-1]))

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels of stride 8 along x and y, with ``out_channels`` channels.

        Raises:
          InputError: voxels lie outside of the grid, see :func:`inside_grid`.
        """
        return self.levels(voxels)[-1]

    def sources(self) -> dict[str, Source]:
        """Return how OpenPCDet and torch-pointcloud name and store the weights of this network.

        The result is a dict from a version's name, such as ``openpcdet``, to its ``Source``.
        """
        openpcdet, torch_pointcloud = backbone_names(self.residual)
        spconv = Spconv("reversed")
        return {
            "openpcdet": Source(spconv, openpcdet, settings=norm_settings(*REFERENCE)),
            **torch_pointcloud_sources(spconv, torch_pointcloud),
        }


@with_signature
def VoxelResBackBone8x(
    in_channels: int,
    grid: Sequence[int],
    *,
    channels: Sequence[int] = (16, 32, 64, 128),
    out_channels: int = 128,
    block_bias: bool = True,
    norm: Mapping[str, Any] = NORM,
    rngs: nnx.Rngs | None = None,
    **options: Unpack[LayerOptions],
) -> VoxelBackBone8x:
    """Return a backbone of residual blocks. Arguments as in :class:`VoxelBackBone8x`."""
    given: dict[str, Any] = {"channels": channels, "block_bias": block_bias, "norm": norm}
    given |= {"out_channels": out_channels, "rngs": rngs, **options}
    return VoxelBackBone8x(in_channels, grid, residual=True, **given)


def grid_with_top(grid: Sequence[int]) -> tuple[int, ...]:
    """Return a grid's numbers of cells along x, y, z with one more along z, as backbones need.

    Raises:
      InputError: ``grid`` does not have 3 axes, or has fewer than 1 cell along an axis.
    """
    if len(grid) != 3 or min(grid) < 1:
        raise InputError(f"grid={tuple(grid)} must be at least one cell along each of x, y, z")
    return int(grid[0]), int(grid[1]), int(grid[2]) + 1


def inside_grid(voxels: Voxels, grid: Sequence[int]) -> Voxels:
    """Check that voxels lie inside of a grid, and return them.

    A network on a grid ignores voxels outside of the grid. A traced call does not raise an error,
    but adds the number of these voxels to ``num_dropped`` of the result.

    Args:
      voxels: the voxels.
      grid: static numbers of cells along each axis. Voxel coordinates count from 0.

    Raises:
      InputError: voxels lie outside of the grid (checked only in eager calls).
    """
    outside = _num_outside(voxels.coords, tuple(grid))
    geometry = voxels.geometry
    if _compat.is_traced(outside):
        drops = geometry.drops.add(geometry.stride, outside)
        return dataclasses.replace(voxels, geometry=dataclasses.replace(geometry, drops=drops))
    if int(outside):
        rows = np.asarray(voxels.valid_coords())[:, 1:]
        ranges = zip(rows.min(0).tolist(), rows.max(0).tolist(), strict=True)
        raise InputError(
            f"{int(outside)} of {len(rows)} voxels lie outside of the grid of "
            f"{'x'.join(map(str, grid))} cells, their cells are "
            f"{', '.join(f'{low}..{high}' for low, high in ranges)}: subtract the lower corner of "
            f"the range from the points, and leave out what lies beyond it by vx.crop(voxels, 0, "
            f"{tuple(grid)})"
        )
    return voxels


@functools.partial(jax.jit, static_argnames="grid")
def _num_outside(coords: jax.Array, grid: tuple[int, ...]) -> jax.Array:
    """Return the number of voxels outside of ``grid`` (cells along x, y, z), ``int32[]``.

    Coordinates inside count from 0. Padding rows of ``coords`` do not count as voxels.
    """
    cells = coords[:, 1:]
    outside = jnp.any((cells < 0) | (cells >= jnp.asarray(grid, jnp.int32)[None]), axis=1)
    return jnp.sum(outside & is_valid(coords), dtype=jnp.int32)
