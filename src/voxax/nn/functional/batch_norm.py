"""Batch normalization with an optional residual and ReLU, as one native call on CPUs.

Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Num
from voxax._native import host_norm
from voxax._native.differentiable import differentiable_on_cpu
from voxax._native.eager import threads
from voxax._native.host import empty_array
from voxax._native.host_products import elements_of
from voxax._native.on_cpu import library_call
from voxax.geometry import Voxels, result_geometry
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import common_dtype, fraction_dtype, wide_fraction
from voxax.geometry.row_operations import as_dtype, clear_rows
from voxax.kernels import Epilogue
from voxax.nn.arguments import add_bias, check_weight, request_map
from voxax.nn.functional.normalization import (
    Rows,
    clear_padding,
    masked_moments,
    normalized,
    with_cleared_features,
)
from voxax.products import convolve_with_epilogue
from voxax.tuning import Request

_NATIVE = ("float32", "float64", "bfloat16")


class Normalized(NamedTuple):
    """The result of :func:`batch_norm`.

    Attributes:
      features: ``[N, C]``, zero in rows that are not valid.
      mean, variance: the running averages ``[C]``, updated in training; they have no derivatives.
    """

    features: jax.Array
    mean: jax.Array
    variance: jax.Array


@checked_operator
def batch_norm(
    features: jax.Array,
    valid: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    training: bool,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    axis_name: str | tuple[str, ...] | None = None,
    residual: jax.Array | None = None,
    relu: bool = False,
) -> Normalized:
    """Normalize each channel over the valid rows, and update the running averages in training.

    The features become ``(x - mean) / sqrt(variance + epsilon) * scale + bias + residual``.

    Args:
      features: ``[N, C]``.
      valid: ``bool[N]``, which rows exist; other rows may hold anything.
      mean, variance: running averages ``[C]``. Evaluation normalizes with them.
      scale, bias: learned factor and offset of each channel, ``[C]``.
      training: whether to normalize with mean and variance of the valid rows, and to update the
        averages.
      momentum: weight of the old average, in [0, 1].
      epsilon: added to the variance.
      axis_name: mapped axis (or axes) over which training shares the statistics.
      residual: ``[N, C]``, added to the normalized features.
      relu: whether to return ``max(result, 0)``.
    """
    dtype, wide = fraction_dtype(features.dtype), wide_fraction(features.dtype)
    features = as_dtype(features, dtype)
    none: Any = np.zeros((0, features.shape[1]), dtype)
    rest = none if residual is None else residual
    averages = as_dtype(mean, wide), as_dtype(variance, wide)
    affine = as_dtype(scale, wide), as_dtype(bias, wide)
    options = {"momentum": float(momentum), "epsilon": float(epsilon), "relu": bool(relu)}
    shared = training and axis_name is not None
    if shared or dtype.name not in _NATIVE or rest.dtype != dtype:
        made = _portable(
            features, valid, *affine, rest, *averages,
            training=training, axis_name=axis_name, **options,
        )  # fmt: skip
        made = (made[0], *map(jax.lax.stop_gradient, made[1:]))
    else:
        made = _batch_norm(features, valid, *affine, rest, *averages, training=training, **options)
    y, _, _, *new = made
    return Normalized(y, as_dtype(new[0], mean.dtype), as_dtype(new[1], variance.dtype))


@checked_operator
def normalize(
    voxels: Rows,
    mean: Num[Array, " C"],
    variance: Num[Array, " C"],
    scale: Num[Array, " C"] | None = None,
    bias: Num[Array, " C"] | None = None,
    epsilon: float = 1e-5,
) -> Rows:
    """Normalize with given statistics: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    The result has the dtype of the features, or float32 for integers.

    Args:
      voxels: Voxels or Points, ``C`` channels.
      mean, variance: mean and variance of each channel, ``[C]``.
      scale, bias: factor and offset of each channel, ``[C]``, or None.
      epsilon: added to the variance.
    """
    channels, dtype = voxels.features.shape[1], fraction_dtype(voxels.features.dtype)
    affine = (
        jnp.asarray(np.ones(channels), dtype) if scale is None else scale,
        jnp.asarray(np.zeros(channels), dtype) if bias is None else bias,
    )
    made = batch_norm(
        voxels.features, voxels.valid, mean, variance, *affine, training=False, epsilon=epsilon
    )
    return with_cleared_features(voxels, made.features)


def _portable(
    x: jax.Array,
    valid: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    residual: jax.Array,
    old_mean: jax.Array,
    old_variance: jax.Array,
    *,
    momentum: float,
    epsilon: float,
    training: bool,
    relu: bool,
    axis_name: Any = None,
) -> tuple[jax.Array, ...]:
    """Compute :func:`batch_norm` in JAX; return five arrays.

    They are the features, the mean and ``1 / sqrt(variance + epsilon)`` that normalized them, and
    the new running mean and variance.
    """
    mean, variance = averages = old_mean, old_variance
    if training:
        mean, variance, number = masked_moments(x, valid, axis_name)
        kept = jnp.where(
            number > 0, jnp.asarray(momentum, number.dtype), jnp.ones((), number.dtype)
        )
        averages = [
            kept * old + (1 - kept) * value
            for old, value in zip(averages, (mean, variance), strict=True)
        ]
    y = normalized(x, valid, mean, variance, scale, bias, epsilon, residual=residual, relu=relu)
    return y, mean, jax.lax.rsqrt(variance + epsilon), *averages


def _shapes(x: jax.Array, *arrays: jax.Array, **static: Any) -> tuple[Any, ...]:
    channel = jax.ShapeDtypeStruct(x.shape[1:], wide_fraction(x.dtype))
    return jax.ShapeDtypeStruct(x.shape, x.dtype), channel, channel, channel, channel


def _native(x: jax.Array, *arrays: jax.Array, **static: Any) -> tuple[jax.Array, ...]:
    results, attributes = _shapes(x), _attributes(**static)
    return tuple(library_call("voxax_batch_norm", results, x, *arrays, **attributes))


def _attributes(**static: Any) -> dict[str, Any]:
    return {
        name: np.bool_(value) if isinstance(value, bool) else np.float64(value)
        for name, value in static.items()
    }


_X, _SCALE, _BIAS, _RESIDUAL, _MEAN, _VARIANCE = 0, 2, 3, 4, 5, 6  # positions of the arguments


def _gradients(
    dy: jax.Array,
    *given: jax.Array,
    moves: tuple[int, ...],
    training: bool,
    relu: bool,
    **rest: float,
) -> tuple[jax.Array, ...]:
    """Return the gradient with respect to each argument of :func:`_portable` named in ``moves``.

    ``moves`` are positions of arguments. ``dy`` is the gradient with respect to the features that
    :func:`_portable` returned. ``given`` are its arguments, then its results. ``rest`` is not used.
    """
    x, valid, scale, _, residual, _, _, y, mean, inverse, *_ = given
    none = jnp.zeros((0, x.shape[1]), x.dtype)
    wants_residual = _RESIDUAL in moves and residual.shape[0] > 0
    dresidual = jax.ShapeDtypeStruct((residual if wants_residual else none).shape, x.dtype)
    channel = jax.ShapeDtypeStruct(scale.shape, scale.dtype)
    results = jax.ShapeDtypeStruct(x.shape, x.dtype), dresidual, channel, channel
    operands = dy, x, y if relu else none, valid, mean, inverse, scale
    options = _attributes(training=training, relu=relu)
    dx, dresidual, dscale, dbias = library_call(
        "voxax_batch_norm_gradients", results, *operands, **options
    )
    found = {_X: dx, _SCALE: dscale, _BIAS: dbias, _RESIDUAL: dresidual}
    if training and (_MEAN in moves or _VARIANCE in moves):
        found[_MEAN] = found[_VARIANCE] = jnp.zeros_like(dbias)
    elif _MEAN in moves or _VARIANCE in moves:
        found[_MEAN] = -dbias * scale * inverse
        found[_VARIANCE] = -dscale * scale * inverse * inverse / 2
    return tuple(found[place] for place in moves)


def _gradients_on_tpu(
    dy: jax.Array,
    *given: jax.Array,
    moves: tuple[int, ...],
    training: bool,
    relu: bool,
    **rest: float,
) -> tuple[jax.Array, ...] | None:
    """Return the result of :func:`_gradients`, or None if ``moves`` include the running averages.

    Arguments as in :func:`_gradients`. This formula needs two sums over the rows, which one pass
    computes. Differentiating :func:`_portable` would need three sums, each in a pass after the
    previous one.
    """
    x, valid, scale, _, residual, _, _, y, mean, inverse, *_ = given
    if _MEAN in moves or _VARIANCE in moves:
        return None
    g = clear_padding(dy, valid)
    if relu:
        g = jnp.where(y > 0, g, jnp.zeros((), g.dtype))
    unit = (clear_padding(x, valid) - mean[None]) * inverse[None]
    dbias, dscale = jnp.sum(g, axis=0), jnp.sum(g * unit, axis=0)
    dx = g
    if training:
        number = jnp.maximum(jnp.sum(valid, dtype=g.dtype), 1)
        dx = g - (dbias / number)[None] - unit * (dscale / number)[None]
    dx = clear_padding(dx * (scale * inverse)[None], valid).astype(x.dtype)
    dresidual = g.astype(residual.dtype) if residual.shape[0] else residual
    found = {_X: dx, _SCALE: dscale, _BIAS: dbias, _RESIDUAL: dresidual}
    return tuple(found[place] for place in moves)


def _on_host(x: np.ndarray, *given: np.ndarray, **static: Any) -> tuple[np.ndarray, ...]:
    valid, scale, bias, residual, mean, variance = given
    y, added = empty_array(x.shape, x.dtype), elements_of(residual) if len(residual) else None
    operands = elements_of(x), valid, scale, bias, added, mean, variance, elements_of(y)
    used = host_norm.batch_norm(*operands, threads=threads(), **static)
    return y, *used


def _gradients_on_host(
    dy: np.ndarray,
    *given: np.ndarray,
    moves: tuple[int, ...],
    training: bool,
    relu: bool,
    **rest: float,
) -> tuple[np.ndarray, ...] | None:
    x, valid, scale, _, residual, _, _, y, mean, inverse, *_ = given
    if not training and (_MEAN in moves or _VARIANCE in moves):
        return None
    dx = empty_array(x.shape, x.dtype)
    wants_residual = _RESIDUAL in moves and len(residual) > 0
    dresidual = empty_array(residual.shape if wants_residual else (0, x.shape[1]), x.dtype)
    rows = elements_of(dy), elements_of(x), elements_of(y)
    operands = *rows, valid, mean, inverse, scale
    results = elements_of(dx), elements_of(dresidual) if wants_residual else None
    options = {"training": training, "relu": relu, "threads": threads()}
    dscale, dbias = host_norm.batch_norm_gradients(*operands, *results, **options)
    found = {_X: dx, _SCALE: dscale, _BIAS: dbias, _RESIDUAL: dresidual}
    if _MEAN in moves or _VARIANCE in moves:
        found[_MEAN] = found[_VARIANCE] = np.zeros_like(dbias)
    return tuple(found[place] for place in moves)


_batch_norm = differentiable_on_cpu(
    "voxax_batch_norm",
    _native,
    _portable,
    _gradients,
    shapes=_shapes,
    eager=_on_host,
    eager_gradients=_gradients_on_host,
    gradients_on_tpu=_gradients_on_tpu,
)


@checked_operator
def conv_norm(
    voxels: Voxels,
    weight: jax.Array,
    affine: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    kernel_size: Any = 3,
    stride: Any = 1,
    *,
    epsilon: float,
    relu: bool,
    bias: jax.Array | None = None,
    groups: int = 1,
    residual: Voxels | None = None,
    out_voxels: Voxels | None = None,
    precision: jax.lax.PrecisionLike = None,
    requests: dict[str, Request],
    **relation: Any,
) -> Voxels | None:
    """Convolve, normalize with given statistics, add ``residual``, and apply ReLU if ``relu``.

    Args:
      affine: mean, variance, scale and bias of the normalization, each ``[C_out]``.
      epsilon: added to the variance.
      relu: whether to return ``max(result, 0)``.
      residual: voxels whose features are added, or None.
      requests: algorithm requests, as keyword arguments of :func:`voxax.products.convolve`.
      voxels, weight, kernel_size, stride, bias, groups, out_voxels, precision, relation (other
        keyword arguments): as in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels, or None if fusion is impossible: the features are not floats, or the residual has
      other coordinates, another shape or another dtype.
    """
    kernel_map = request_map(voxels, kernel_size, stride, out_voxels=out_voxels, **relation)
    check_weight(weight, kernel_map, voxels.num_channels, groups)
    target = None if out_voxels is None else out_voxels.geometry
    geometry = result_geometry(kernel_map, voxels.geometry, target)
    dtype = common_dtype(voxels.features.dtype, weight.dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    added = None if residual is None else residual.features
    if residual is not None and added is not None:
        shape = kernel_map.out_capacity, affine[0].shape[0]
        if residual.geometry is not geometry or (added.shape, added.dtype) != (shape, dtype):
            return None
    mean, variance, scale, shift = affine
    epilogue = Epilogue(
        geometry.valid, mean, variance, scale, shift, bias, added, float(epsilon), relu
    )
    with jax.named_scope("spatially_sparse_conv"):
        features = convolve_with_epilogue(
            voxels.features,
            weight,
            kernel_map,
            epilogue,
            _after_product,
            precision=precision,
            **requests,
        )
    return with_cleared_features(dataclasses.replace(voxels, geometry=geometry), features)


def _after_product(y: jax.Array, epilogue: Epilogue) -> jax.Array:
    """Return ``y [rows, C_out]`` after the bias, batch norm, residual and ReLU of ``epilogue``.

    Bias and residual may be None.
    """
    e = epilogue
    if e.bias is not None:
        y = clear_rows(add_bias(y, e.bias), e.valid)
    affine = e.mean, e.variance, e.scale, e.shift
    options = {"epsilon": e.epsilon, "residual": e.residual, "relu": e.relu}
    return batch_norm(y, e.valid, *affine, training=False, **options).features
