"""Activations of features in one native call on CPUs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.geometry.call_checks import checked_operator

# Those of the library, in the order of Act in native/src/activation.h, with a function of JAX and
# the name of its parameter.
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
    """Return whether :func:`activate` has this function for features of ``dtype``."""
    return name in _KNOWN and jnp.dtype(dtype).name in FRACTIONS


@checked_operator
def activate(
    features: jax.Array, valid: jax.Array, name: str, parameter: float | None = None
) -> jax.Array:
    """Return ``f(x)`` of features ``[N, C]``, zero in rows that are not valid.

    Half precision is computed in float32.

    Args:
      features: ``[N, C]``.
      valid: ``bool[N]``; other rows may hold anything.
      name: of the function: see :func:`takes`.
      parameter: of ``leaky_relu`` and ``elu``; None for the usual one.
    """
    p = _DEFAULTS.get(name, 0.0) if parameter is None else float(parameter)
    return _activation(features, valid, name=name, parameter=p)[0]


def _portable(
    x: jax.Array, valid: jax.Array, *, name: str, parameter: float
) -> tuple[jax.Array, ...]:
    function, option = _KNOWN[name]
    wide = x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x
    wide = jnp.where(valid[:, None], wide, jnp.zeros((), wide.dtype))
    y = function(wide) if option is None else function(wide, **{option: parameter})
    return (jnp.where(valid[:, None], y, jnp.zeros((), y.dtype)).astype(x.dtype),)


def _value(call: Any, x: Any, valid: Any, *, name: str, parameter: float) -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("activation", (result,), x, valid, sizes=(_place(name),), numbers=(parameter,))


def _gradients(
    call: Any, dy: Any, x: Any, valid: Any, y: Any, *, moves: Any, name: str, parameter: float
) -> Any:
    del y, moves
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"sizes": (_place(name),), "numbers": (parameter,)}
    return call("activation", (result,), x, valid, dy, **options)


def _place(name: str) -> int:
    return list(_KNOWN).index(name)


_activation = differentiable_operator("voxax_activation", _value, _portable, _gradients)
