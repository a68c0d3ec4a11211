"""Small networks that encode the points of each voxel, or of each vertical pillar."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax import _compat
from voxax._array_types import Array, Float, Int, Num
from voxax.errors import InputError, check_known
from voxax.geometry import Points, Voxels, voxelize
from voxax.geometry.cells import from_origin
from voxax.geometry.input_checks import check_voxel_size
from voxax.geometry.origin import as_origin, shift
from voxax.geometry.regroup import gather_rows, reduce_rows
from voxax.nn.arguments import static
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import Linear


@dataclasses.dataclass(frozen=True)
class PointRows:
    """Features of points, and the voxel of each point. Points without a voxel count as padding.

    Attributes:
      features: ``[N, C]``.
      inverse: ``int32[N]``, row of each point's voxel, or -1 for no voxel.
    """

    features: jax.Array
    inverse: jax.Array

    @property
    def valid(self) -> jax.Array:
        return self.inverse >= 0

    @property
    def num_channels(self) -> int:
        return self.features.shape[1]

    def replace_features(self, features: jax.Array) -> PointRows:
        cleared = jnp.where(self.valid[:, None], features, jnp.zeros((), features.dtype))
        return PointRows(cleared, self.inverse)

    def map(self, fn: Callable[[jax.Array], jax.Array]) -> PointRows:
        return self.replace_features(fn(self.features))


@functools.partial(jax.jit, static_argnames=("axes", "parts", "dtype"))
def decorate(
    features: jax.Array,
    positions: jax.Array,
    coords: jax.Array,
    inverse: jax.Array,
    size: jax.Array,
    origin: jax.Array,
    *,
    axes: tuple[int, ...],
    parts: tuple[bool, bool, bool],
    dtype: Any,
) -> jax.Array:
    """Return the encoder's input features of each point; zero where ``inverse`` is -1.

    Args:
      features, positions: ``[N, C]`` and ``[N, D]``, of the points.
      coords: ``int32[capacity, 1 + len(axes)]``, scene and coordinates of the voxels on ``axes``.
      inverse: ``int32[N]``, row of each point's voxel, or -1.
      size: ``[len(axes)]``, edge lengths of a voxel along ``axes``.
      origin: ``float32[3, len(axes)]``, whose three rows add up to the lattice's origin minus the
        origin of the positions.
      axes: indices of the position axes that the voxel lattice has.
      parts: three flags: whether to append the positions, the offsets from the mean of the voxel's
        points, and the offsets from the voxel's center.
      dtype: dtype of the result.

    Returns:
      ``[N, C + ...]``: the features, then the selected parts in the order of ``parts``.
    """
    use_positions, use_mean_offset, use_center_offset = parts
    member = (inverse >= 0)[:, None]
    positions = jnp.where(member, positions, jnp.zeros((), positions.dtype))
    center = (coords[:, 1:].astype(positions.dtype) + 0.5) * size[None, :]
    columns = jnp.asarray(axes)
    local = from_origin(positions[:, columns], origin)
    from_center = jnp.where(member, local - gather_rows(center, inverse), 0)
    entries = [features]
    if use_positions:
        entries.append(positions)
    if use_mean_offset:
        # Average offsets from the center, because positions may be large.
        near = positions.at[:, columns].set(from_center)
        mean = reduce_rows(near, inverse, len(coords), "mean")
        entries.append(near - gather_rows(mean, inverse))
    if use_center_offset:
        entries.append(from_center)
    together = jnp.concatenate([entry.astype(dtype) for entry in entries], axis=1)
    return jnp.where(member, together, jnp.zeros((), dtype))


class VoxelFeatureEncoder(CheckedModule):
    """Turn points into voxels by a small network on every point, reduced over each voxel.

    The input of a point is its features, its position, and its offset from the mean of its voxel's
    points. Every layer is a linear map, batch normalization over the points, ReLU, and the maximum
    (or mean) over each voxel. Between layers, each voxel's result is appended to the features of
    its points. A voxel uses all of its points, however many there are ("dynamic voxelization").
    Points that voxelization drops have no influence on any statistic.

    Args:
      in_channels: channels of the point features, positions not counted; may be 0.
      channels: output channels of each layer; an integer for one layer. The result has those of the
        last layer.
      voxel_size: edge length in the positions' unit, a number or one per axis.
      ndim: spatial axes D of the points.
      reduction: ``max`` or ``mean``.
      origin: position of the lattice origin; None is zero.
      use_positions, use_mean_offset, use_center_offset: whether a point's input contains its
        position, its offset from the mean of the voxel's points, and its offset from the voxel's
        center.
      capacity: static number of rows of the result. None takes one of a few standard sizes in eager
        calls, and the number of points under ``jax.jit``.
      momentum, epsilon, axis_name: arguments of :class:`BatchNorm`.
      dtype: dtype of the layers' computation and of the result; None is ``param_dtype``.
        Offsets are always taken in at least float32.
      param_dtype: dtype of the stored parameters.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Source: Zhou and Tuzel, "VoxelNet: End-to-End Learning for Point Cloud Based 3D Object
    Detection", CVPR 2018. Its limits on voxels and points are removed as in Zhou et al.,
    "End-to-End Multi-View Fusion for 3D Object Detection in LiDAR Point Clouds", CoRL 2020.

    Examples:
      >>> encode = modules.VoxelFeatureEncoder(4, (16, 32), voxel_size=1.0, rngs=nnx.Rngs(0))
      >>> encode(points).num_channels
      32
    """

    _may_be_zero = ("in_channels",)

    def __init__(
        self,
        in_channels: int,
        channels: int | Sequence[int],
        voxel_size: float | Sequence[float],
        *,
        ndim: int = 3,
        reduction: Literal["max", "mean"] = "max",
        origin: Sequence[float] | None = None,
        use_positions: bool = True,
        use_mean_offset: bool = True,
        use_center_offset: bool = False,
        capacity: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        axis_name: str | tuple[str, ...] | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        check_known("reduction", reduction, ("max", "mean"))
        self.ndim, self.in_channels, self.capacity = ndim, in_channels, static(capacity)
        self.lattice_axes = self._lattice_axes(ndim)
        self.voxel_size = check_voxel_size(voxel_size, len(self.lattice_axes))
        self.origin = None if origin is None else tuple(float(v) for v in origin)
        self.use_positions, self.use_mean_offset = use_positions, use_mean_offset
        self.use_center_offset = use_center_offset
        self.reduction: Literal["max", "mean"] = reduction
        self.dtype = param_dtype if dtype is None else dtype
        rngs = own_rngs(rngs)
        width = in_channels + ndim * (use_positions + use_mean_offset)
        width += len(self.lattice_axes) * use_center_offset
        kept: dict[str, Any] = {"param_dtype": param_dtype}
        statistics = {"momentum": momentum, "epsilon": epsilon}
        linears, norms = [], []
        for out in np.atleast_1d(channels).tolist():
            # No bias, because the normalization would subtract it.
            linears.append(Linear(width, out, use_bias=False, rngs=rngs, dtype=self.dtype, **kept))
            norms.append(BatchNorm(out, axis_name=axis_name, **statistics, **kept))
            width = 2 * out
        if not linears:
            raise InputError("channels=() must name at least one layer")
        self.linears, self.norms = nnx.List(linears), nnx.List(norms)

    def _lattice_axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim))

    def __call__(
        self,
        positions: Float[Array | np.ndarray, "N D"] | Points,
        features: Num[Array | np.ndarray, "N C"] | None = None,
        batch_index: Int[Array | np.ndarray, " N"] | None = None,
        *,
        batch_size: int | None = None,
    ) -> Voxels:
        """Return voxels with ``channels[-1]`` channels.

        Args:
          positions: :class:`voxax.Points`, or ``float[N, D]``.
          features: ``[N, in_channels]``; None for Points, or for ``in_channels=0``.
          batch_index: ``int[N]``, the scene of each point. None is scene 0; Points have their own.
          batch_size: static number of scenes; None reads it from ``batch_index`` in eager calls.

        Raises:
          InputError, CapacityError: as in :func:`voxax.voxelize`. InputError also if the number of
            axes or channels differs from the module's.
        """
        points = self._points(positions, features, batch_index, batch_size)
        if _compat.is_on_explicit_mesh(points):
            return _compat.on_whole_arrays(self._encode, (points,), {})
        return self._encode(points)

    def _encode(self, points: Points) -> Voxels:
        bare = dataclasses.replace(
            points,
            positions=points.positions[:, jnp.asarray(self.lattice_axes)],
            origin=as_origin(points.origin).axes(self.lattice_axes) if points.origin else (),
            features=jnp.zeros((points.capacity, 0), jnp.float32),
        )
        voxels, inverse = voxelize(
            bare,
            voxel_size=self.voxel_size,
            capacity=self.capacity,
            origin=self.origin,
            return_inverse=True,
        )
        dtype = points.positions.dtype
        decorated = decorate(
            points.features,
            points.positions,
            voxels.coords,
            inverse,
            jnp.asarray(self.voxel_size, dtype),
            shift(voxels.origin, bare.origin, len(self.voxel_size)),
            axes=self.lattice_axes,
            parts=(self.use_positions, self.use_mean_offset, self.use_center_offset),
            dtype=jnp.dtype(self.dtype),
        )
        rows = PointRows(decorated, inverse)
        last = len(self.linears) - 1
        for index, (linear, norm) in enumerate(zip(self.linears, self.norms, strict=True)):
            rows = norm(linear(rows)).map(jax.nn.relu)
            merged = reduce_rows(rows.features, inverse, voxels.capacity, self.reduction)
            if index < last:
                joined = jnp.concatenate([rows.features, gather_rows(merged, inverse)], axis=1)
                rows = rows.replace_features(joined)
        return dataclasses.replace(voxels, features=merged)

    def _points(
        self, positions: Any, features: Any, batch_index: Any, batch_size: int | None
    ) -> Points:
        if isinstance(positions, Points):
            points = positions
        else:
            if features is None:
                features = jnp.zeros((len(positions), 0), jnp.float32)
            points = Points.make(positions, features, batch_index, batch_size=batch_size)
        if (points.ndim, points.num_channels) != (self.ndim, self.in_channels):
            raise InputError(
                f"{type(self).__name__} expects {self.ndim}-D points with {self.in_channels} "
                f"channels, got {points.ndim}-D points with {points.num_channels}"
            )
        return points


class PillarEncoder(VoxelFeatureEncoder):
    """Turn points into pillars, voxels of unlimited height, by a small network on every point.

    The input of a point is its features, its position, its offset from the mean of its pillar's
    points on all axes, and its offset from the pillar's center on all axes except the vertical one.
    The result has ``ndim - 1`` axes. ``result.to_dense()`` returns the pseudo-image.

    Args:
      in_channels: channels of the point features, positions not counted; may be 0.
      channels: output channels of each layer, an integer for one layer.
      voxel_size: edge length of a pillar in the positions' unit, a number or one per pillar axis.
      axis: the vertical axis of the positions.
      ndim: spatial axes D of the points, at least 2.
      use_center_offset, reduction, use_positions, use_mean_offset, capacity, momentum, epsilon,
        axis_name, dtype, param_dtype, rngs: as for :class:`VoxelFeatureEncoder`.
      origin: position of the lattice origin on the pillar's axes; None is zero.

    Source: Lang et al., "PointPillars: Fast Encoders for Object Detection from Point Clouds",
    CVPR 2019. The numbers of pillars and of points in a pillar are not limited here.

    Examples:
      >>> encode = modules.PillarEncoder(4, 32, voxel_size=1.0, rngs=nnx.Rngs(0))
      >>> encode(points).geometry.ndim
      2
    """

    def __init__(
        self,
        in_channels: int,
        channels: int | Sequence[int] = 64,
        voxel_size: float | Sequence[float] = 0.16,
        *,
        axis: int = -1,
        ndim: int = 3,
        reduction: Literal["max", "mean"] = "max",
        origin: Sequence[float] | None = None,
        use_positions: bool = True,
        use_mean_offset: bool = True,
        use_center_offset: bool = True,
        capacity: int | None = None,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        axis_name: str | tuple[str, ...] | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if ndim < 2 or not -ndim <= axis < ndim:
            raise InputError(f"axis={axis} of {ndim}-D points: pillars need one of 2 or more axes")
        self.axis = axis % ndim
        super().__init__(
            in_channels,
            channels,
            voxel_size,
            ndim=ndim,
            reduction=reduction,
            origin=origin,
            use_positions=use_positions,
            use_mean_offset=use_mean_offset,
            use_center_offset=use_center_offset,
            capacity=capacity,
            momentum=momentum,
            epsilon=epsilon,
            axis_name=axis_name,
            dtype=dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )

    def _lattice_axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(a for a in range(ndim) if a != self.axis)
