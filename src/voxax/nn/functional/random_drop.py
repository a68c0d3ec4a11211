"""Drop features of voxels and points at random."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax._native.random import PLAIN_KEY, is_plain_key
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import fraction_dtype
from voxax.geometry.halo import split_axis
from voxax.geometry.row_operations import as_dtype
from voxax.nn.functional.normalization import (
    Scenes,
    clear_padding,
    scene_index,
    with_cleared_features,
)

DropoutMode = Literal["feature", "voxel", "channel", "scene"]


@checked_operator
def dropout(voxels: Scenes, rate: float, key: jax.Array, mode: DropoutMode = "feature") -> Scenes:
    """Set features to zero with probability ``rate``, and divide the others by ``1 - rate``.

    The expected value of every feature stays as it is (inverted dropout). The voxels stay too:
    to take voxels away use :func:`voxax.prune`. On shards of a scene each draws numbers of its own,
    but for ``channel`` and ``scene``, which are one draw for the scene.

    Args:
      voxels: Voxels or Points.
      rate: in [0, 1], static.
      key: a ``jax.random`` key.
      mode: what is dropped together: ``feature`` single features, ``voxel`` all channels of a
        voxel, ``channel`` a channel in all voxels of a scene (Tompson et al. 2015), ``scene`` all
        features of a scene (Huang et al. 2016).

    Returns:
      The same voxels in the features' dtype, float32 for integers.

    Raises:
      InputError: a rate outside [0, 1], or an unknown mode.

    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 2014.
    """
    check_dropout(rate, mode)
    dtype = fraction_dtype(voxels.features.dtype)
    if rate == 0:
        return voxels.replace_features(voxels.features.astype(dtype))
    if rate == 1:
        return voxels.replace_features(jnp.zeros(voxels.features.shape, dtype))
    axis = split_axis(voxels)
    if axis is not None and mode not in ("channel", "scene"):
        key = jax.random.fold_in(key, jax.lax.axis_index(axis))
    arrays = as_dtype(voxels.features, dtype), voxels.valid, scene_index(voxels)
    options = {"rate": float(rate), "mode": mode, "batch_size": voxels.batch_size}
    if dtype.name in FRACTIONS and is_plain_key(key):
        (features,) = _dropout(*arrays, jax.random.key_data(key), **options)
    else:
        features = _portable(*arrays, key, **options)
    return with_cleared_features(voxels, features)


def check_dropout(rate: float, mode: str) -> None:
    """Raise :class:`voxax.InputError` for a rate outside [0, 1] or an unknown mode."""
    if not 0 <= rate <= 1:
        raise InputError(f"dropout rate {rate} must lie in [0, 1]: the fraction that is dropped")
    check_known("dropout mode", mode, get_args(DropoutMode))


@functools.partial(jax.jit, static_argnames=("rate", "mode", "batch_size"))
def _portable(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    key: jax.Array,
    *,
    rate: float,
    mode: DropoutMode,
    batch_size: int,
) -> jax.Array:
    rows, channels = features.shape
    # A float32 probability, so that the draws do not depend on whether 64 bits are enabled.
    probability = np.float32(1 - rate)
    if mode in ("channel", "scene"):
        drawn = (batch_size, channels if mode == "channel" else 1)
        by_scene = jax.random.bernoulli(key, probability, drawn)
        kept = by_scene.at[scene].get(mode="fill", fill_value=False)
    else:
        shape = (rows, channels) if mode == "feature" else (rows, 1)
        kept = jax.random.bernoulli(key, probability, shape)
    x = clear_padding(features, valid) / (1 - rate)
    return jnp.where(kept, x, jnp.zeros((), x.dtype)).astype(features.dtype)


def _of_words(*arrays: jax.Array, **static: Any) -> tuple[jax.Array, ...]:
    *rows, words = arrays
    return (_portable(*rows, jax.random.wrap_key_data(words, impl=PLAIN_KEY), **static),)


def _value(
    call: Any,
    x: Any,
    valid: Any,
    scene: Any,
    words: Any,
    *,
    rate: float,
    mode: DropoutMode,
    batch_size: int,
) -> Any:
    del batch_size
    group = scene if mode in ("channel", "scene") else scene[:0]
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"sizes": (mode in ("voxel", "scene"),), "numbers": (1 - rate, 1 - rate)}
    return call("dropout", (result,), x, valid, group, words, **options)


def _gradients(
    call: Any,
    dy: Any,
    x: Any,
    valid: Any,
    scene: Any,
    words: Any,
    y: Any,
    *,
    moves: Any,
    **rest: Any,
) -> Any:
    del x, y, moves
    return _value(call, dy, valid, scene, words, **rest)


_dropout = differentiable_operator("voxax_dropout", _value, _of_words, _gradients)
