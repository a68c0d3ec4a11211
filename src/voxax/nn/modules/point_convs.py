"""Convolution modules for point clouds, which sum over the neighbors of each query point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.geometry import Neighbors, Points
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.dynamic.neighbor_conv import (
    Influence,
    Mapping,
    Window,
    continuous_conv,
    kernel_point_conv,
    kernel_point_positions,
    poly6,
)
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.keys import next_key
from voxax.nn.modules.sparse_convs import Initializer, he_normal


class ContinuousConv(CheckedModule):
    """Convolve points with a kernel that is interpolated from a learned grid of weight matrices.

    Args:
      in_channels, out_channels: numbers of channels C and C_out.
      kernel_size: number T of grid nodes along each axis, an integer or one per axis.
      radius: radius of the ball of neighbors, in the unit of the positions.
      ndim: number of axes, 1 to 3.
      mapping: map from the ball to the grid; see :func:`voxax.nn.functional.continuous_conv`.
      window: function from squared relative distances to weights of neighbors, or None.
      normalize: whether to divide by the sum of these weights.
      use_bias, param_dtype, kernel_init, precision, rngs: as in :class:`DynamicConv`.

    Attributes:
      weight: ``[*T, C, C_out]``.
      bias: ``[C_out]`` or None.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 4,
        *,
        radius: float,
        ndim: int = 3,
        mapping: Mapping = "volume_preserving",
        window: Window | None = poly6,
        normalize: bool = False,
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = own_rngs(rngs)
        shape = (*per_axis(kernel_size, ndim, "kernel_size"), in_channels, out_channels)
        self.mapping: Mapping = mapping
        self.radius, self.window = float(radius), window
        self.normalize, self.precision = normalize, precision
        self.weight = nnx.Param(kernel_init(next_key(rngs.params), shape, param_dtype))
        self.bias = nnx.Param(jnp.zeros((out_channels,), param_dtype)) if use_bias else None

    def __call__(
        self, points: Points, neighbors: Neighbors, queries: Points | None = None
    ) -> Points:
        """Return ``queries`` (``points`` if None) with the C_out channels of the convolution.

        ``neighbors`` lists the rows of ``points`` near each query.
        """
        return continuous_conv(
            points,
            self.weight[...],
            neighbors,
            queries,
            radius=self.radius,
            mapping=self.mapping,
            window=self.window,
            normalize=self.normalize,
            bias=None if self.bias is None else self.bias[...],
            precision=self.precision,
        )


class KernelPointConv(CheckedModule):
    """Kernel point convolution (KPConv) of points with a learned weight, rigid or deformable.

    A deformable module predicts an offset for each kernel point of each query, by a rigid
    convolution over the same neighbors. The weights of this convolution start at zero.

    Args:
      in_channels, out_channels: numbers of channels C and C_out.
      num_kernel_points: number of kernel points K.
      extent: distance up to which a kernel point has influence, in the unit of the positions. One
        kernel point lies at the query, the others 1.5 extents from it on average, so search
        neighbors within 2.5 extents.
      ndim: number of axes.
      deformable: whether to predict offsets of the kernel points.
      modulated: whether to predict a factor for each kernel point, 2 times a sigmoid.
      influence: function of distance, see :func:`voxax.nn.functional.kernel_point_conv`.
      use_bias, param_dtype, kernel_init, precision, rngs: as in :class:`DynamicConv`.

    Attributes:
      weight: ``[K, C, C_out]``.
      predict, predict_bias: weight and bias of the predicting convolution; None if there is none.
      bias: ``[C_out]`` or None.

    Source: Thomas et al., "KPConv", ICCV 2019.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_kernel_points: int = 15,
        *,
        extent: float,
        ndim: int = 3,
        deformable: bool = False,
        modulated: bool = False,
        influence: Influence = "linear",
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = own_rngs(rngs)
        places = kernel_point_positions(num_kernel_points, ndim, radius=1.5 * extent)
        # Tuples are static attributes; flax would treat an array as a parameter.
        self.kernel_points = tuple(map(tuple, places.tolist()))
        self.influence: Influence = influence
        self.extent, self.precision = float(extent), precision
        self.deformable, self.modulated = deformable, modulated
        shape = (num_kernel_points, in_channels, out_channels)
        self.weight = nnx.Param(kernel_init(next_key(rngs.params), shape, param_dtype))
        predicted = num_kernel_points * (ndim * deformable + modulated)
        start = [jnp.zeros(s, param_dtype) for s in ((*shape[:2], predicted), (predicted,))]
        self.predict, self.predict_bias = (nnx.Param(p) if predicted else None for p in start)
        self.bias = nnx.Param(jnp.zeros((out_channels,), param_dtype)) if use_bias else None

    def __call__(
        self, points: Points, neighbors: Neighbors, queries: Points | None = None
    ) -> Points:
        """Return ``queries`` (``points`` if None) with the C_out channels of the convolution.

        ``neighbors`` lists the rows of ``points`` near each query.
        """
        offsets, factors = self.predictions(points, neighbors, queries)
        return self._convolve(points, neighbors, queries, self.weight, self.bias, offsets, factors)

    def predictions(
        self, points: Points, neighbors: Neighbors, queries: Points | None = None
    ) -> tuple[jax.Array | None, jax.Array | None]:
        """Predict kernel point offsets ``[M, K, D]``, in positions' units, and factors ``[M, K]``.

        Offsets are None unless ``deformable`` is set, and factors unless ``modulated`` is set.
        """
        if self.predict is None:
            return None, None
        y = self._convolve(points, neighbors, queries, self.predict, self.predict_bias)
        found = y.features.reshape(y.capacity, len(self.kernel_points), -1)
        offsets = found[..., : points.ndim] * self.extent if self.deformable else None
        factors = 2 * jax.nn.sigmoid(found[..., -1]) if self.modulated else None
        return offsets, factors

    def _convolve(self, points, neighbors, queries, weight, bias, offsets=None, factors=None):
        return kernel_point_conv(
            points,
            weight[...],
            neighbors,
            jnp.asarray(self.kernel_points, points.positions.dtype),
            queries,
            extent=self.extent,
            offsets=offsets,
            modulation=factors,
            influence=self.influence,
            bias=None if bias is None else bias[...],
            precision=self.precision,
        )
