"""Pooling to a coarser level and back with learned projections, as in Point Transformer V3.

Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024, and its
predecessor "Point Transformer V2: Grouped Vector Attention and Partition-based Pooling", NeurIPS
2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from flax import nnx

from voxax.errors import check_known
from voxax.geometry import Voxels
from voxax.nn import functional
from voxax.nn.arguments import static
from voxax.nn.functional.pooling import Size
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import Linear
from voxax.nn.modules.sequential import Sequential

Norm = Callable[[int], nnx.Module]


def _after(
    channels: int, norm: Norm | None, activation: Callable[..., Any] | None
) -> list[Callable[..., Any]]:
    normed: Any = None if norm is None else norm(channels)
    return [layer for layer in (normed, activation) if layer is not None]


class GridPool(CheckedModule):
    """Pooling to coarse cells: linear projection, reduction of each cell, norm and activation.

    Args:
      in_channels, out_channels: numbers of channels.
      stride: edge of a coarse cell, an integer or one per axis.
      reduction: ``max``, ``mean``, ``sum`` or ``min``.
      norm: a function from a number of channels to a norm module; None adds no norm.
      activation: a function on Voxels; None adds no activation.
      capacity: static number of rows of the result; None takes the capacity that :func:`voxax.plan`
        gave this level, or without a plan the input's.
      use_bias, dtype, param_dtype, precision: arguments of the linear layer.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Raises:
      InputError: the reduction is unknown; or, in a call, the number of channels differs.
      CapacityError: there are more coarse voxels than ``capacity``; only in eager calls.
    """

    FUNCTIONS: ClassVar[dict[str, Any]] = {
        "max": functional.max_pool,
        "mean": functional.mean_pool,
        "sum": functional.sum_pool,
        "min": functional.min_pool,
    }

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: Size = 2,
        *,
        reduction: Literal["max", "mean", "sum", "min"] = "max",
        norm: Norm | None = BatchNorm,
        activation: Callable[..., Any] | None = None,
        capacity: int | None = None,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = "highest",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        check_known("reduction", reduction, tuple(self.FUNCTIONS))
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
        self.proj = Linear(in_channels, out_channels, use_bias=use_bias, rngs=rngs, **kinds)
        self.after = Sequential(*_after(out_channels, norm, activation))
        self.stride, self.capacity = static(stride), static(capacity)
        self.reduction: Literal["max", "mean", "sum", "min"] = reduction

    def __call__(self, voxels: Voxels) -> Voxels:
        pool = self.FUNCTIONS[self.reduction]
        return self.after(pool(self.proj(voxels), self.stride, capacity=self.capacity))


class GridUnpool(CheckedModule):
    """Copy coarse features to the fine voxels of a skip connection, and add the skip features.

    First, each of the two inputs goes through a linear layer, a norm and an activation of its own.

    Args:
      in_channels: channels of the coarse level.
      skip_channels: channels of the skip connection.
      out_channels: channels of the result.
      stride: stride of the pooling that made the coarse level.
      norm, activation, dtype, param_dtype, precision, rngs: as for :class:`GridPool`.
    """

    def __init__(
        self,
        in_channels: int,
        skip_channels: int,
        out_channels: int,
        stride: Size = 2,
        *,
        norm: Norm | None = BatchNorm,
        activation: Callable[..., Any] | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = "highest",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = own_rngs(rngs)
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
        self.proj = Linear(in_channels, out_channels, rngs=rngs, **kinds)
        self.after = Sequential(*_after(out_channels, norm, activation))
        self.proj_skip = Linear(skip_channels, out_channels, rngs=rngs, **kinds)
        self.after_skip = Sequential(*_after(out_channels, norm, activation))
        self.stride = static(stride)

    def __call__(self, voxels: Voxels, skip: Voxels) -> tuple[Voxels, Voxels]:
        """Return the sum of both projected inputs, and the projected ``skip`` alone.

        ``voxels`` are the coarse voxels. Both results have the coordinates of ``skip``, the fine
        voxels.

        Raises:
          InputError: the number of channels of an input differs from the module's.
          GeometryMismatchError: ``voxels`` were not pooled from the voxels of ``skip``.
        """
        fine = self.after_skip(self.proj_skip(skip))
        coarse = self.after(self.proj(voxels))
        coarse = functional.unpool(coarse, fine, kernel_size=self.stride)
        return fine + coarse, fine
