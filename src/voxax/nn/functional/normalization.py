"""Normalize features over rows or scenes, ignoring padding.

Layer norm and RMS norm take statistics of each row, instance norm and group norm of each scene. The
module ``batch_norm`` normalizes over all valid rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Bool, Float, Num
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.errors import InputError
from voxax.geometry import Points, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import fraction_dtype, wide_fraction
from voxax.geometry.eager import in_either
from voxax.geometry.halo import split_axis
from voxax.geometry.row_operations import as_dtype


class FeatureRows(Protocol):
    """Type of the input of norms: rows of features with a mask of valid rows, such as Voxels."""

    @property
    def features(self) -> jax.Array: ...

    @property
    def valid(self) -> jax.Array: ...

    def replace_features(self, features: jax.Array) -> Self: ...


Rows = TypeVar("Rows", bound=FeatureRows)


@checked_operator
@functools.partial(jax.jit, static_argnames="axis_name")
def masked_moments(
    features: Num[Array, "N C"],
    valid: Bool[Array, " N"],
    axis_name: str | tuple[str, ...] | None = None,
) -> tuple[Float[Array, " C"], Float[Array, " C"], Float[Array, ""]]:
    """Return mean and biased variance of each channel over the valid rows, in at least float32.

    Args:
      features: ``[N, C]``; rows that are not valid may hold anything.
      valid: ``bool[N]``, which rows exist.
      axis_name: mapped axis (or axes) whose devices share the statistics, or None.

    Returns:
      ``(mean [C], variance [C], number [])``, where number counts the valid rows. All are zero if
      no row is valid.
    """
    wide = wide_fraction(features.dtype)
    x = clear_padding(features, valid)
    number = jnp.sum(valid, dtype=wide)
    total = jnp.sum(x, axis=0)
    if axis_name is not None:
        number, total = jax.lax.psum((number, total), axis_name)
    mean = total / jnp.maximum(number, 1)
    centered = jnp.where(valid[:, None], x - mean[None, :], jnp.zeros((), wide))
    squares = jnp.sum(centered * centered, axis=0)
    if axis_name is not None:
        squares = jax.lax.psum(squares, axis_name)
    return mean, squares / jnp.maximum(number, 1), number


@functools.partial(jax.jit, static_argnames=("epsilon", "relu"))
def normalized(
    features: jax.Array,
    valid: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    epsilon: float,
    *,
    residual: jax.Array,
    relu: bool,
) -> jax.Array:
    """Return ``(x - mean) / sqrt(variance + epsilon) * scale + bias + residual``, zero in padding.

    ``x`` is ``features [N, C]``. The result has the dtype of ``features``, float32 for integers. A
    ``residual [0, C]`` is not added. With ``relu`` negative values become zero.
    """
    wide = wide_fraction(features.dtype)
    x = clear_padding(features, valid)
    factor = jax.lax.rsqrt(variance.astype(wide) + epsilon) * scale.astype(wide)
    y = (x - mean.astype(wide)[None, :]) * factor[None, :] + bias.astype(wide)[None, :]
    if residual.shape[0] == x.shape[0]:
        y = y + clear_padding(residual, valid).astype(wide)
    if relu:
        y = jax.nn.relu(y)
    return clear_padding(y, valid).astype(fraction_dtype(features.dtype))


def clear_padding(features: jax.Array, valid: jax.Array) -> jax.Array:
    """Return ``features [N, C]`` in at least float32, zero where ``valid`` is False.

    Call it before computing with the features, or else NaN in padding would reach the gradient.
    """
    wide = wide_fraction(features.dtype)
    return jnp.where(valid[:, None], features.astype(wide), jnp.zeros((), wide))


@checked_operator
def layer_norm(
    voxels: Rows,
    scale: Num[Array, " C"] | None = None,
    bias: Num[Array, " C"] | None = None,
    epsilon: float = 1e-5,
) -> Rows:
    """Normalize the features of each voxel to mean 0, variance 1; then ``* scale + bias``.

    Args:
      voxels: Voxels or Points, ``C`` channels.
      scale, bias: factor and offset of each channel, ``[C]``, or None.
      epsilon: added to the biased variance.

    Returns:
      The same voxels with normalized features in the dtype of the input (float32 for integers).
      Statistics are computed in at least float32.

    Raises:
      InputError: ``scale`` or ``bias`` has another shape.

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.

    Examples:
      >>> functional.layer_norm(voxels).num_channels
      4
    """
    check_affine(voxels.features.shape[1], scale, bias)
    return _with_row_norm(voxels, scale, bias, epsilon, True)


@checked_operator
def rms_norm(voxels: Rows, scale: Num[Array, " C"] | None = None, epsilon: float = 1e-5) -> Rows:
    """Divide the features of each voxel by their root mean square, then ``* scale``.

    Arguments, result and errors as in :func:`layer_norm`; ``epsilon`` is added to the mean square.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
    """
    check_affine(voxels.features.shape[1], scale)
    return _with_row_norm(voxels, scale, None, epsilon, False)


def check_affine(channels: int, scale: jax.Array | None, bias: jax.Array | None = None) -> None:
    """Raise :class:`voxax.InputError` unless scale and bias are ``[channels]`` or None."""
    for name, value in (("scale", scale), ("bias", bias)):
        if value is not None and value.shape != (channels,):
            raise InputError(
                f"{name} of shape {tuple(value.shape)} for {channels} channels: expected "
                f"[{channels}]"
            )


def _with_row_norm(
    rows: Rows,
    scale: jax.Array | None,
    bias: jax.Array | None,
    epsilon: float,
    centered: bool,
) -> Rows:
    dtype = fraction_dtype(rows.features.dtype)
    options = {"epsilon": float(epsilon), "centered": centered}
    call = _row_norm if dtype.name in FRACTIONS else _row_norm_portable
    features = as_dtype(rows.features, dtype)
    (y,) = call(features, rows.valid, *_affine(scale, bias, dtype), **options)
    return with_cleared_features(rows, y)


def with_cleared_features(voxels: Rows, features: jax.Array) -> Rows:
    """Return ``voxels`` with new ``features [N, C]``, whose padding rows are zero already."""
    if isinstance(voxels, Voxels | Points):
        return dataclasses.replace(voxels, features=features)
    return voxels.replace_features(features)


def _affine(scale: jax.Array | None, bias: jax.Array | None, dtype: Any) -> list[Any]:
    """Return scale and bias in ``dtype``, but at least float32; None becomes an empty array."""
    wide = wide_fraction(dtype)
    return [np.zeros(0, wide) if a is None else as_dtype(a, wide) for a in (scale, bias)]


@functools.partial(jax.jit, static_argnames=("epsilon", "centered"))
def _row_norm_portable(
    features: jax.Array,
    valid: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float,
    centered: bool,
) -> tuple[jax.Array]:
    @jax.checkpoint  # the backward pass repeats these few operations, and needs only the features
    def run(features: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        x = clear_padding(features, valid)
        if centered:
            x = x - jnp.mean(x, axis=1, keepdims=True)
        y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + epsilon)
        if scale.shape[0]:
            y = y * scale[None, :]
        if bias.shape[0]:
            y = y + bias[None, :]
        # Padding is zero already if there is no bias, but its cotangents are not.
        return clear_padding(y, valid).astype(features.dtype)

    return (run(features, scale, bias),)


def _row_norm_value(
    call: Any, x: Any, valid: Any, scale: Any, bias: Any, *, epsilon: float, centered: bool
) -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"sizes": (centered,), "numbers": (epsilon,)}
    return call("row_norm", (result,), x, valid, scale, bias, **options)


def _row_norm_gradients(
    call: Any, dy: Any, *given: Any, moves: tuple[int, ...], epsilon: float, centered: bool
) -> Any:
    x, valid, scale, bias, _ = given
    channel = jax.ShapeDtypeStruct(x.shape[1:], scale.dtype)
    results = jax.ShapeDtypeStruct(x.shape, x.dtype), channel, channel
    options = {"sizes": (centered,), "numbers": (epsilon,)}
    dx, dscale, dbias = call("row_norm_gradients", results, dy, x, valid, scale, **options)
    found = {0: dx, 2: dscale[: scale.shape[0]], 3: dbias[: bias.shape[0]]}
    return tuple(found[place] for place in moves)


_row_norm = differentiable_operator(
    "voxax_row_norm", _row_norm_value, _row_norm_portable, _row_norm_gradients
)


Scenes = TypeVar("Scenes", Voxels, Points)


@checked_operator
def group_norm(
    voxels: Scenes,
    num_groups: int,
    scale: Num[Array, " C"] | None = None,
    bias: Num[Array, " C"] | None = None,
    epsilon: float = 1e-5,
) -> Scenes:
    """Normalize groups of channels of each scene to mean 0, variance 1; then ``* scale + bias``.

    Statistics are taken over the channels of the group and all voxels of the scene. If the scene is
    split over a mesh axis, they include all shards.

    Args:
      voxels: Voxels or Points, ``C`` channels; scenes may be empty.
      num_groups: number of groups, which divides C. A group is ``C / num_groups`` consecutive
        channels.
      scale, bias: factor and offset of each channel, ``[C]``, or None.
      epsilon: added to the biased variance.

    Returns:
      The same voxels with normalized features in the dtype of the input (float32 for integers).
      Statistics are computed in at least float32.

    Raises:
      InputError: the groups do not divide the channels, or ``scale`` or ``bias`` has another shape.

    Source: Wu and He, "Group Normalization", ECCV 2018.
    """
    channels = voxels.features.shape[1]
    check_affine(channels, scale, bias)
    if num_groups < 1 or channels % num_groups:
        raise InputError(f"num_groups={num_groups} must divide the {channels} channels")
    dtype = fraction_dtype(voxels.features.dtype)
    given = as_dtype(voxels.features, dtype), voxels.valid, scene_index(voxels)
    arrays = *given, *_affine(scale, bias, dtype)
    options = {"batch_size": voxels.batch_size, "groups": num_groups, "epsilon": float(epsilon)}
    axis = split_axis(voxels)
    if axis is not None or dtype.name not in FRACTIONS:
        y, *_ = _scene_norm_portable(*arrays, axis=axis, **options)
    else:
        y, *_ = _scene_norm(*arrays, **options)
    return with_cleared_features(voxels, y)


@checked_operator
def instance_norm(
    voxels: Scenes,
    scale: Num[Array, " C"] | None = None,
    bias: Num[Array, " C"] | None = None,
    epsilon: float = 1e-5,
) -> Scenes:
    """Normalize each channel to mean 0 and variance 1 over the voxels of a scene.

    Arguments, result and errors as in :func:`group_norm`, with one group for each channel.

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
    """
    return group_norm(voxels, voxels.features.shape[1], scale, bias, epsilon)


def scene_index(voxels: Voxels | Points) -> jax.Array:
    """Return the scene of each row, ``int32[capacity]``; padding rows may hold anything."""
    return voxels.batch_index if isinstance(voxels, Points) else _first(voxels.coords)


@in_either()
def _first(xp: Any, coords: Any) -> Any:
    del xp
    return coords[:, 0]


@functools.partial(jax.jit, static_argnames=("batch_size", "groups", "epsilon", "axis"))
def _scene_norm_portable(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    batch_size: int,
    groups: int,
    epsilon: float,
    axis: str | None = None,
) -> tuple[jax.Array, ...]:
    """Return normalized features ``[N, C]``, and two statistics ``[batch_size, C]``.

    Mean and variance are taken over each scene and each of ``groups`` groups of channels. The
    statistics are the mean and ``1 / sqrt(variance + epsilon)``, repeated for each channel of the
    group. With ``axis``, scenes are split over this mesh axis.
    """
    x = clear_padding(features, valid)
    wide, channels = x.dtype, x.shape[1]
    members = (scene[:, None] == jnp.arange(batch_size, dtype=scene.dtype)[None, :]) & valid[
        :, None
    ]
    number = jnp.sum(members, axis=0, dtype=jnp.int32) * (channels // groups)
    if axis is not None:
        number = jax.lax.psum(number, axis)
    number = jnp.maximum(number, 1).astype(wide)
    zero = jnp.zeros((), wide)

    # Scenes are summed one after the other, by selection. Scattered additions into few rows would
    # collide, in an order that differs between runs on a GPU. A product with the matrix of members
    # would spread a NaN of one scene to all others.
    def mean_of(values: jax.Array) -> jax.Array:
        """Return ``[batch_size, C]``: means of ``values`` over each scene and group of channels."""
        total = jax.lax.map(
            lambda mine: jnp.sum(jnp.where(mine[:, None], values, zero), axis=0), members.T
        )
        if axis is not None:
            total = jax.lax.psum(total, axis)
        total = total.reshape(batch_size, groups, -1).sum(axis=2)
        return jnp.repeat(total / number[:, None], channels // groups, axis=1)

    def read(statistic: jax.Array) -> jax.Array:
        """Return ``[N, C]``: ``statistic [batch_size, C]`` at each row's scene, zero in padding."""

        def select(rows: jax.Array, scene: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            mine, value = scene
            return jnp.where(mine[:, None], value[None, :], rows), None

        return jax.lax.scan(select, jnp.zeros_like(x), (members.T, statistic))[0]

    mean = mean_of(x)
    centered = x - read(mean)
    factor = inverse = jax.lax.rsqrt(mean_of(centered * centered) + epsilon)
    if scale.shape[0]:
        factor = factor * scale[None, :]
    y = centered * read(factor)
    if bias.shape[0]:
        y = clear_padding(y + bias[None, :], valid)
    return y.astype(features.dtype), mean, inverse


def _scene_norm_value(
    call: Any, x: Any, *arrays: Any, batch_size: int, groups: int, epsilon: float
) -> Any:
    scenes = jax.ShapeDtypeStruct((batch_size, x.shape[1]), wide_fraction(x.dtype))
    results = jax.ShapeDtypeStruct(x.shape, x.dtype), scenes, scenes
    return call("scene_norm", results, x, *arrays, sizes=(groups,), numbers=(epsilon,))


def _scene_norm_gradients(
    call: Any, dy: Any, *given: Any, moves: tuple[int, ...], groups: int, **rest: Any
) -> Any:
    x, valid, scene, scale, bias, _, mean, inverse = given
    channel = jax.ShapeDtypeStruct(x.shape[1:], scale.dtype)
    results = jax.ShapeDtypeStruct(x.shape, x.dtype), channel, channel
    operands = dy, x, valid, scene, scale, mean, inverse
    dx, dscale, dbias = call("scene_norm_gradients", results, *operands, sizes=(groups,))
    found = {0: dx, 3: dscale[: scale.shape[0]], 4: dbias[: bias.shape[0]]}
    return tuple(found[place] for place in moves)


_scene_norm = differentiable_operator(
    "voxax_scene_norm", _scene_norm_value, _scene_norm_portable, _scene_norm_gradients
)
