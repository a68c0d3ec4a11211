"""Normalisation of every voxel by itself, over its channels."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.nn.functional.norm import Rows, clear_padding


def layer_norm(
    voxels: Rows,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    epsilon: float = 1e-5,
) -> Rows:
    """Each voxel's features to mean 0 and variance 1, then ``* scale + bias``.

    Args:
      voxels: Voxels or Points, ``C`` channels.
      scale, bias: ``[C]``; None leaves them out.
      epsilon: added to the (biased) variance.

    Returns:
      The same voxels; statistics in at least float32, features in the input's dtype.

    Raises:
      InputError: a scale or bias of another shape.

    Source: Ba, Kiros, Hinton, "Layer Normalization", 2016.
    """
    check_affine(voxels.features.shape[1], scale, bias)
    features = _layer_norm(voxels.features, voxels.valid, scale, bias, epsilon=epsilon)
    return voxels.replace_features(features)


def rms_norm(voxels: Rows, scale: jax.Array | None = None, epsilon: float = 1e-5) -> Rows:
    """Each voxel's features divided by their root mean square, then ``* scale``.

    Arguments, result and errors as in :func:`layer_norm`; ``epsilon`` is added to the mean square.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.
    """
    check_affine(voxels.features.shape[1], scale)
    features = _rms_norm(voxels.features, voxels.valid, scale, epsilon=epsilon)
    return voxels.replace_features(features)


def check_affine(channels: int, scale: jax.Array | None, bias: jax.Array | None = None) -> None:
    """Raise :class:`voxax.InputError` unless scale and bias are ``[C]`` or None."""
    for name, value in (("scale", scale), ("bias", bias)):
        if value is not None and value.shape != (channels,):
            raise InputError(
                f"{name} of shape {tuple(value.shape)} for {channels} channels: expected "
                f"[{channels}]"
            )


@functools.partial(jax.jit, static_argnames="epsilon")
def _layer_norm(
    features: jax.Array,
    valid: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    epsilon: float,
) -> jax.Array:
    x = clear_padding(features, valid)
    centred = x - jnp.mean(x, axis=1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + epsilon)
    if scale is not None:
        y = y * scale.astype(y.dtype)[None, :]
    if bias is not None:
        y = y + bias.astype(y.dtype)[None, :]
    return y.astype(features.dtype)


@functools.partial(jax.jit, static_argnames="epsilon")
def _rms_norm(
    features: jax.Array, valid: jax.Array, scale: jax.Array | None, *, epsilon: float
) -> jax.Array:
    x = clear_padding(features, valid)
    y = x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + epsilon)
    if scale is not None:
        y = y * scale.astype(y.dtype)[None, :]
    return y.astype(features.dtype)
