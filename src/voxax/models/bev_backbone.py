"""The dense 2-D network on the ground plane that detectors run after their sparse backbone.

Sources: Yan, Mao, Li, "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018, after Liu
et al., "SSD: Single Shot MultiBox Detector", ECCV 2016.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.errors import InputError, check_known
from voxax.geometry import Voxels
from voxax.interop.sources import by_part, renaming
from voxax.models.options import check_integers, check_options
from voxax.models.voxel_backbone import NORM, VoxelBackBone8x, backbone_names, inside_grid
from voxax.nn.arguments import static
from voxax.nn.functional.batch_norm import batch_norm
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import LayerOptions, he_normal


class DenseConvNormAct(Module):
    """Dense 2-D convolution on a grid ``[B, X, Y, C]``, then batch normalization and ReLU.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size, stride: size and stride along both axes.
      padding: number of zero cells added on every side; not used by a transposed convolution.
      transposed: whether the convolution is transposed; ``stride`` is then the upsampling factor
        along each axis.
      use_bias: whether the convolution has a bias. Batch normalization cancels its effect.
      norm: arguments of ``nnx.BatchNorm``.
      rngs: streams for the initial weights.
      **options: arguments of the convolution: ``dtype``, ``param_dtype``, ``precision``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 0,
        *,
        transposed: bool = False,
        use_bias: bool = False,
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs,
        **options: Unpack[LayerOptions],
    ) -> None:
        make = nnx.ConvTranspose if transposed else nnx.Conv
        self.conv = make(
            in_channels,
            out_channels,
            (kernel_size, kernel_size),
            (stride, stride),
            padding="VALID" if transposed else ((padding, padding),) * 2,
            use_bias=use_bias,
            rngs=rngs,
            **dense_options(options),
        )
        # The default variance, a difference of two means, may lose all digits in float32.
        self.norm = nnx.BatchNorm(out_channels, use_fast_variance=False, rngs=rngs, **norm)

    def __call__(self, grid: jax.Array) -> jax.Array:
        return _normalized(self.norm, self.conv(grid))


def _normalized(norm: nnx.BatchNorm, grid: jax.Array) -> jax.Array:
    """Return ``relu(norm(grid))``; in training also update the running statistics of ``norm``.

    ``grid`` is ``[B, X, Y, channels]``. On CPUs a native kernel computes the result if it supports
    the options of ``norm``.
    """
    training = not norm.use_running_average
    scale, bias = norm.scale, norm.bias
    plain = type(norm) is nnx.BatchNorm and nnx.BatchNorm.__call__ is _FLAX_CALL
    plain &= norm.dtype is None and norm.axis_index_groups is None
    if not plain or scale is None or bias is None or norm.axis not in (-1, grid.ndim - 1):
        return jax.nn.relu(norm(grid))
    rows = grid.reshape(-1, grid.shape[-1])
    made = batch_norm(
        rows.astype(jnp.result_type(rows, norm.mean[...])),
        jnp.asarray(np.ones(rows.shape[0], bool)),
        norm.mean[...],
        norm.var[...],
        scale[...],
        bias[...],
        training=training,
        momentum=norm.momentum,
        epsilon=norm.epsilon,
        axis_name=norm.axis_name,
        relu=True,
    )
    if training:
        norm.mean.set_value(made.mean)
        norm.var.set_value(made.variance)
    return made.features.reshape(grid.shape)


_FLAX_CALL = nnx.BatchNorm.__call__


def dense_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of ``nnx.Conv`` for the options of a sparse layer, with voxax's defaults.

    The options ``dtype``, ``param_dtype`` and ``precision`` are passed on. Options that
    ``nnx.Conv`` does not have, such as ``fwd_algo``, are left out.

    Raises:
      InputError: an option that sparse layers do not have.
    """
    for option in options:
        check_known("option", option, tuple(LayerOptions.__annotations__))
    known = {k: v for k, v in options.items() if k in ("dtype", "param_dtype")}
    precision = options.get("precision")
    # Full precision is the default, as in sparse layers.
    return {
        "kernel_init": he_normal,
        "precision": "highest" if precision is None else precision,
        **known,
    }


class BEVBackbone(Module):
    """Dense 2-D pyramid on a grid: levels of convolutions, resized to one size and concatenated.

    Args:
      in_channels: channels of the input grid.
      layers: number of convolutions of each level after its strided convolution.
      strides: stride of each level relative to the level before.
      channels: channels of each level.
      up_strides: upsampling factor from each level to the common size: a positive integer, or the
        reciprocal of a positive integer for a level that is finer than the common size.
      up_channels: channels of each level after the resizing.
      norm: arguments of every batch normalization.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every convolution: ``dtype``, ``param_dtype``, ``precision``.

    Attributes:
      out_channels: channels of the result, the sum of ``up_channels``.

    Raises:
      InputError: the lists differ in length; ``up_strides`` do not lead to one size; an option is
        unknown; when called, the levels differ in size because the strides do not divide the grid.
    """

    def __init__(
        self,
        in_channels: int,
        *,
        layers: Sequence[int] = (5, 5),
        strides: Sequence[int] = (1, 2),
        channels: Sequence[int] = (128, 256),
        up_strides: Sequence[float] = (1, 2),
        up_channels: Sequence[int] = (256, 256),
        norm: Mapping[str, Any] = NORM,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        check_options(type(self).__name__, type(self), options)
        given = {"layers": layers, "strides": strides, "channels": channels}
        given |= {"up_strides": up_strides, "up_channels": up_channels}
        given = {name: static(values) for name, values in given.items()}
        if len({len(value) for value in given.values()}) > 1 or not given["layers"]:
            sizes = ", ".join(f"{len(value)} {name}" for name, value in given.items())
            raise InputError(f"{sizes}: give one of each for every level")
        check_integers(0, layers=given["layers"])
        check_integers(1, **{name: given[name] for name in ("strides", "channels", "up_channels")})
        # The stride and the upsampling factor of each level.
        self.factors = tuple(zip(given["strides"], map(_factor, given["up_strides"]), strict=True))
        reached = {size / back for size, back in self._cumulative()}
        if len(reached) > 1:
            raise InputError(
                f"up_strides={given['up_strides']} after strides={given['strides']} lead to grids "
                f"of {len(reached)} sizes: each must undo the strides to one size"
            )
        common: dict[str, Any] = {"norm": norm, "rngs": own_rngs(rngs), **options}
        levels, ups = [], []
        numbers, widths = given["layers"], zip(given["channels"], given["up_channels"], strict=True)
        for number, (width, up_width), (stride, back) in zip(
            numbers, widths, self.factors, strict=True
        ):
            level = [DenseConvNormAct(in_channels, width, 3, stride, 1, **common)]
            level += [DenseConvNormAct(width, width, 3, 1, 1, **common) for _ in range(number)]
            levels.append(nnx.List(level))
            step = max(back.numerator, back.denominator)
            up = DenseConvNormAct(width, up_width, step, step, transposed=back >= 1, **common)
            ups.append(up)
            in_channels = width
        self.levels, self.ups = nnx.List(levels), nnx.List(ups)
        self.out_channels = sum(given["up_channels"])

    def _cumulative(self) -> list[tuple[int, Fraction]]:
        """Return for each level its stride relative to the input, and its upsampling factor."""
        sizes = itertools.accumulate((stride for stride, _ in self.factors), operator.mul)
        return [(size, back) for size, (_, back) in zip(sizes, self.factors, strict=True)]

    def check_grid(self, cells: Sequence[int], unit: int = 1) -> None:
        """Raise :class:`InputError` unless all levels have the same size after upsampling.

        Args:
          cells: numbers of cells of the input grid along x and y.
          unit: number of voxels of the network's input along one side of a grid cell. The error
            message states the required grid size in these voxels.
        """
        sizes, shape = [], tuple(cells)
        for stride, back in self.factors:
            shape = tuple(-(-n // stride) for n in shape)
            sizes.append(tuple(int(n * back) for n in shape))
        if len(set(sizes)) > 1 or min(sizes[0]) < 1:
            shown = " and ".join("x".join(map(str, size)) for size in dict.fromkeys(sizes))
            whole = math.lcm(*(size * back.denominator for size, back in self._cumulative()))
            raise InputError(
                f"levels of {shown} cells cannot be joined: along x and y the grid must be "
                f"multiples of {whole * unit} cells"
            )

    def __call__(self, grid: jax.Array) -> jax.Array:
        """Return features ``[B, X', Y', out_channels]`` of a grid ``[B, X, Y, in_channels]``."""
        self.check_grid(grid.shape[1:3])
        parts = []
        for number, (level, up) in enumerate(zip(self.levels, self.ups, strict=True)):
            with jax.named_scope(f"level{number + 1}"):
                for layer in level:
                    grid = layer(grid)
                parts.append(up(grid))
        return jnp.concatenate(parts, axis=-1)


def _factor(up: float) -> Fraction:
    """Return an upsampling factor (a positive integer or its reciprocal) as an exact fraction.

    Raise :class:`InputError` for any other number.
    """
    if isinstance(up, int | float) and 1e-6 < up < 1e6:
        step = max(up, 1 / up)
        if math.isclose(step, round(step), rel_tol=1e-6):
            return Fraction(round(step)) if up >= 1 else Fraction(1, round(step))
    raise InputError(f"up_strides has {up!r}: each must be a positive integer, or one over it")


def ground_grid(voxels: Voxels, grid: Sequence[int]) -> jax.Array:
    """Convert voxels to a dense 2-D grid on the ground plane, with the heights as channels.

    Args:
      voxels: voxels with axes x, y, z and ``C`` channels.
      grid: static numbers of cells along x, y, z. Voxel coordinates count from 0. Under ``jax.jit``
        voxels outside of the grid are left out.

    Returns:
      ``[B, X, Y, C * Z]``. Channel ``c * Z + z`` has feature ``c`` of the voxel at height ``z``.
      Cells without a voxel are zero.

    Raises:
      InputError: voxels lie outside of the grid (checked only in eager calls).
    """
    dense = inside_grid(voxels, grid).to_dense(grid)  # [B, X, Y, Z, C]
    return dense.swapaxes(3, 4).reshape(*dense.shape[:3], -1)


class GroundDetector(Module):
    """Base class of detectors: sparse 3-D backbone, dense 2-D backbone on the ground plane, head.

    Subclasses build the layers.

    Attributes:
      backbone_3d: a module from Voxels to Voxels. Its attribute ``grid`` has the numbers of cells
        of its output along x, y and z.
      backbone_2d: a module from a dense grid ``[B, X, Y, C]`` to a dense grid.
      head: a module from the grid that ``backbone_2d`` returns to predictions for its cells.
    """

    backbone_3d: Any
    backbone_2d: Any
    head: Callable[[jax.Array], Any]

    def _make_backbones(
        self,
        in_channels: int,
        grid: Sequence[int],
        bev: Mapping[str, Any] | None,
        common: Mapping[str, Any],
        **sizes: Any,
    ) -> None:
        """Set ``backbone_3d`` and ``backbone_2d`` to new, untrained modules.

        ``grid`` is the number of input cells along x, y and z. ``sizes`` are more arguments of the
        sparse backbone, and ``bev`` of the dense backbone. Both backbones take the arguments in
        ``common``, which ``bev`` overrides.
        """
        self.backbone_3d = VoxelBackBone8x(in_channels, grid, **sizes, **common)
        folded = self.backbone_3d.out_channels * self.backbone_3d.grid[2]
        self.backbone_2d = BEVBackbone(folded, **{**common, **(bev or {})})
        self.backbone_2d.check_grid(self.backbone_3d.grid[:2], 8)

    def encode(self, voxels: Voxels) -> Voxels:
        """Run the sparse backbone on ``voxels``, and return its output.

        ``num_dropped`` of the output is the number of rows that were lost to capacity.
        """
        return self.backbone_3d(voxels)

    def predictions(self, encoded: Voxels) -> Any:
        """Run the dense backbone and the head; return the head's predictions.

        ``encoded`` is the output of the sparse backbone, from :meth:`encode`.
        """
        with jax.named_scope("ground"):
            return self.head(self.backbone_2d(ground_grid(encoded, self.backbone_3d.grid)))

    def __call__(self, voxels: Voxels) -> Any:
        """Run the whole detector: return the head's predictions for each ground plane cell."""
        return self.predictions(self.encode(voxels))

    def _openpcdet_names(self, head: Callable[[str], str]) -> Callable[[str], str]:
        """Return a function from a layer's path in this detector to its name in OpenPCDet.

        ``head`` does this for the layers of the head, with paths and names relative to the head.
        """
        return by_part(
            backbone_3d=("backbone_3d", backbone_names(self.backbone_3d.residual)[0]),
            backbone_2d=("backbone_2d", bev_names()[0]),
            head=("dense_head", head),
        )


def levels_rule(path: str, blocks: str, before: int = 0) -> tuple[str, Any]:
    """Return a rule that renames the layers in the levels of :class:`BEVBackbone`.

    The rule is an argument of :func:`renaming`: a pattern and its replacement. OpenPCDet and
    mmdetection3d store level ``i`` as a flat list of convolutions, norms and ReLUs. The rule
    renames ``{path}levels.i.j.conv`` to ``{blocks}.i.n`` and ``{path}levels.i.j.norm`` to
    ``{blocks}.i.{n + 1}``, with ``n = before + 3 * j``.

    Args:
      path: regular expression for the text before ``levels`` in voxax's names.
      blocks: name of the list of levels in the other codebase.
      before: number of layers before the first convolution in each level's list.
    """

    def place(found: re.Match[str]) -> str:
        return f"{blocks}.{found[1]}.{before + 3 * int(found[2]) + (found[3] == 'norm')}"

    return rf"^{path}levels\.(\d+)\.(\d+)\.(conv|norm)$", place


def bev_names() -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Return two functions that rename the layers of :class:`BEVBackbone`.

    Both take the path of a layer. The first returns its name in OpenPCDet, the second its name in
    torch-pointcloud.
    """
    openpcdet = renaming(
        levels_rule("", "blocks", 1),  # padding comes first
        (r"^ups\.(\d+)\.conv$", r"deblocks.\1.0"),
        (r"^ups\.(\d+)\.norm$", r"deblocks.\1.1"),
    )
    torch_pointcloud = renaming(
        (r"^levels\.(\d+)\.(\d+)", lambda found: f"blocks.{found[1]}.{int(found[2]) + 1}"),
        (r"^ups\b", "deblocks"),
    )
    return openpcdet, torch_pointcloud
