"""Focal sparse convolution that predicts where its set of voxels grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.geometry import Voxels
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional.focal_conv import focal_conv
from voxax.nn.functional.sparse_conv import spatially_sparse_conv
from voxax.nn.modules.conv import Initializer
from voxax.nn.modules.initializers import he_normal


class FocalConv(nnx.Module):
    """:func:`voxax.nn.functional.focal_conv`, importance from a submanifold convolution.

    Args:
      in_channels, out_channels: channels.
      kernel_size: of both convolutions, an integer or one per axis.
      ndim: spatial axes.
      threshold: above it an importance counts.
      capacity: static rows of the result; None as for the function.
      use_bias, param_dtype, kernel_init, precision, rngs: as in :class:`SpatiallySparseConv`.

    Attributes:
      weight: ``[K, C_in, C_out]``; bias: ``[C_out]`` or None.
      predict, predict_bias: of the convolution that predicts, ``[K, C_in, K]`` and ``[K]``.

    Source: Chen et al., "Focal Sparse Convolutional Networks for 3D Object Detection", CVPR 2022.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        *,
        ndim: int = 3,
        threshold: float = 0.5,
        capacity: int | None = None,
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.threshold, self.capacity, self.precision = float(threshold), capacity, precision
        taps = math.prod(self.kernel_size)
        shapes = ((taps, in_channels, out_channels), (taps, in_channels, taps))
        weight, predict = (kernel_init(rngs.params(), shape, param_dtype) for shape in shapes)
        self.weight, self.predict = nnx.Param(weight), nnx.Param(predict)
        self.predict_bias = nnx.Param(jnp.zeros((taps,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((out_channels,), param_dtype)) if use_bias else None

    def importance(self, voxels: Voxels) -> jax.Array:
        """``float[capacity, K]`` in (0, 1), for a loss of its own on what should grow."""
        scores = spatially_sparse_conv(
            voxels,
            self.predict[...],
            self.kernel_size,
            bias=self.predict_bias[...],
            precision=self.precision,
        )
        return jax.nn.sigmoid(scores.features)

    def __call__(self, voxels: Voxels) -> Voxels:
        """The voxels and those that grew, with ``out_channels`` channels."""
        return focal_conv(
            voxels,
            self.weight[...],
            self.importance(voxels),
            self.kernel_size,
            bias=None if self.bias is None else self.bias[...],
            threshold=self.threshold,
            capacity=self.capacity,
            precision=self.precision,
        )
