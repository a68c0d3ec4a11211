"""Activations, linear layers and dropout on rows of features, each one native call on CPUs."""

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
from voxax.geometry.dtypes import fraction_dtype, wide_fraction
from voxax.geometry.halo import split_axis
from voxax.geometry.row_operations import as_dtype
from voxax.nn.functional.normalization import (
    Scenes,
    clear_padding,
    scene_index,
    with_cleared_features,
)

# The native activations, in the order of Act in native/src/activation.h. Each entry is the function
# of JAX with the same values, and the name of its parameter.
_KNOWN: dict[str, tuple[Any, str | None]] = {
    "gelu": (functools.partial(jax.nn.gelu, approximate=False), None),
    "gelu_tanh": (functools.partial(jax.nn.gelu, approximate=True), None),
    "silu": (jax.nn.silu, None),
    "sigmoid": (jax.nn.sigmoid, None),
    "tanh": (jnp.tanh, None),
    "leaky_relu": (jax.nn.leaky_relu, "negative_slope"),
    "elu": (jax.nn.elu, "alpha"),
    "softplus": (jax.nn.softplus, None),
}
_DEFAULTS = {"leaky_relu": 0.01, "elu": 1.0}


def takes(name: str, dtype: Any) -> bool:
    """Return whether :func:`activate` can apply the function ``name`` to features of ``dtype``."""
    return name in _KNOWN and jnp.dtype(dtype).name in FRACTIONS


@checked_operator
def activate(
    features: jax.Array, valid: jax.Array, name: str, parameter: float | None = None
) -> jax.Array:
    """Apply an activation function to the features ``[N, C]``; invalid rows become zero.

    Half precision is computed in float32.

    Args:
      features: ``[N, C]``.
      valid: ``bool[N]``, which rows exist; other rows may hold anything.
      name: name of the function, such as ``"gelu"``; :func:`takes` returns whether it is known.
      parameter: slope of ``leaky_relu`` (None is 0.01) or alpha of ``elu`` (None is 1).
    """
    p = _DEFAULTS.get(name, 0.0) if parameter is None else float(parameter)
    return _activation(features, valid, name=name, parameter=p)[0]


def _activation_portable(
    x: jax.Array, valid: jax.Array, *, name: str, parameter: float
) -> tuple[jax.Array, ...]:
    function, option = _KNOWN[name]
    wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
    wide = jnp.where(valid[:, None], wide, jnp.zeros((), wide.dtype))
    y = function(wide) if option is None else function(wide, **{option: parameter})
    return (jnp.where(valid[:, None], y, jnp.zeros((), y.dtype)).astype(x.dtype),)


def _activation_value(call: Any, x: Any, valid: Any, *, name: str, parameter: float) -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("activation", (result,), x, valid, sizes=(_place(name),), numbers=(parameter,))


def _activation_gradients(
    call: Any, dy: Any, x: Any, valid: Any, y: Any, *, moves: Any, name: str, parameter: float
) -> Any:
    del y, moves
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"sizes": (_place(name),), "numbers": (parameter,)}
    return call("activation", (result,), x, valid, dy, **options)


def _place(name: str) -> int:
    return list(_KNOWN).index(name)


_activation = differentiable_operator(
    "voxax_activation", _activation_value, _activation_portable, _activation_gradients
)


_PRODUCTS = ("float32", "float64", "bfloat16")


@checked_operator
def linear(
    features: jax.Array,
    valid: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    *,
    precision: Any = None,
) -> jax.Array:
    """Return ``features @ weight + bias``, zero in invalid rows.

    Args:
      features: ``[N, C_in]``; invalid rows may hold anything.
      valid: ``bool[N]``, which rows exist.
      weight: ``[C_in, C_out]`` of the same dtype.
      bias: ``[C_out]`` of the same dtype, or None.
      precision: precision of the product, as in ``jax.lax.dot_general``. The native call on CPUs
        ignores it and has full precision.
    """
    added: Any = np.zeros((0,), features.dtype) if bias is None else bias
    call = _linear if features.dtype.name in _PRODUCTS else _linear_portable
    return call(features, valid, weight, added, precision=precision)[0]


def _linear_portable(
    x: jax.Array, valid: jax.Array, weight: jax.Array, bias: jax.Array, *, precision: Any
) -> tuple[jax.Array, ...]:
    zero = jnp.zeros((), x.dtype)
    x = jnp.where(valid[:, None], x, zero)
    y = jax.lax.dot_general(x, weight, (((1,), (0,)), ((), ())), precision=precision)
    if bias.shape[0]:
        y = jnp.where(valid[:, None], y + bias[None, :], zero)
    return (y,)


def _linear_value(call: Any, x: Any, valid: Any, weight: Any, bias: Any, *, precision: Any) -> Any:
    del precision
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[1]), x.dtype)
    return call("linear", (result,), x, valid, weight, bias)


def _linear_gradients(
    call: Any, dy: Any, *given: Any, moves: tuple[int, ...], precision: Any
) -> Any:
    del precision
    x, valid, weight, bias, _ = given
    results = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct(weight.shape, x.dtype),
        jax.ShapeDtypeStruct(weight.shape[1:], wide_fraction(x.dtype)),
    )
    dx, dw, db = call("linear_gradients", results, dy, x, valid, weight)
    found = {0: dx, 2: dw, 3: db.astype(bias.dtype) if bias.shape[0] else db[:0]}
    return tuple(found[place] for place in moves)


_linear = differentiable_operator(
    "voxax_linear", _linear_value, _linear_portable, _linear_gradients
)


DropoutMode = Literal["feature", "voxel", "channel", "scene"]


@checked_operator
def dropout(voxels: Scenes, rate: float, key: jax.Array, mode: DropoutMode = "feature") -> Scenes:
    """Set features to zero with probability ``rate``, and divide the others by ``1 - rate``.

    The expected value of every feature does not change (inverted dropout). No voxels are removed;
    :func:`voxax.prune` removes voxels. If a scene is split into shards, each shard draws its own
    numbers, except in the modes ``channel`` and ``scene``, which draw once for the whole scene.

    Args:
      voxels: Voxels or Points.
      rate: probability, a static number in [0, 1].
      key: a ``jax.random`` key.
      mode: the features that are dropped together. ``feature``: single features. ``voxel``: all
        channels of a voxel. ``channel``: a channel in all voxels of a scene (Tompson et al. 2015).
        ``scene``: all features of a scene (Huang et al. 2016).

    Returns:
      The same voxels with features in the dtype of the input, float32 for integers.

    Raises:
      InputError: a rate outside [0, 1], an unknown mode, or a key that is none.

    Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 2014.
    """
    check_dropout(rate, mode)
    dtype = fraction_dtype(voxels.features.dtype)
    if rate == 0:
        return voxels.replace_features(voxels.features.astype(dtype))
    if rate == 1:
        return voxels.replace_features(jnp.zeros(voxels.features.shape, dtype))
    if not _is_key(key):
        raise InputError(f"key={key!r:.80}: give a random key, such as jax.random.key(0)")
    axis = split_axis(voxels)
    if axis is not None and mode not in ("channel", "scene"):
        key = jax.random.fold_in(key, jax.lax.axis_index(axis))
    arrays = as_dtype(voxels.features, dtype), voxels.valid, scene_index(voxels)
    options = {"rate": float(rate), "mode": mode, "batch_size": voxels.batch_size}
    if dtype.name in FRACTIONS and is_plain_key(key):
        (features,) = _dropout(*arrays, jax.random.key_data(key), **options)
    else:
        features = _dropout_portable(*arrays, key, **options)
    return with_cleared_features(voxels, features)


def _is_key(key: Any) -> bool:
    if not hasattr(key, "dtype"):
        return False
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key.shape == ()
    return key.dtype == np.uint32 and key.ndim == 1


def check_dropout(rate: float, mode: str) -> None:
    """Raise :class:`voxax.InputError` for a rate outside [0, 1] or an unknown mode."""
    if isinstance(rate, str) or not 0 <= rate <= 1:
        raise InputError(f"dropout rate {rate!r} must lie in [0, 1]: the fraction that is dropped")
    check_known("dropout mode", mode, get_args(DropoutMode))


@functools.partial(jax.jit, static_argnames=("rate", "mode", "batch_size"))
def _dropout_portable(
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


def _dropout_of_words(*arrays: jax.Array, **static: Any) -> tuple[jax.Array, ...]:
    *rows, words = arrays
    return (_dropout_portable(*rows, jax.random.wrap_key_data(words, impl=PLAIN_KEY), **static),)


def _dropout_value(
    call: Any, x: Any, *given: Any, rate: float, mode: DropoutMode, batch_size: int
) -> Any:
    del batch_size
    valid, scene, words = given
    group = scene if mode in ("channel", "scene") else scene[:0]
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"sizes": (mode in ("voxel", "scene"),), "numbers": (1 - rate, 1 - rate)}
    return call("dropout", (result,), x, valid, group, words, **options)


def _dropout_gradients(call: Any, dy: Any, *given: Any, moves: Any, **rest: Any) -> Any:
    del moves
    return _dropout_value(call, dy, *given[1:4], **rest)


_dropout = differentiable_operator(
    "voxax_dropout", _dropout_value, _dropout_of_words, _dropout_gradients
)
