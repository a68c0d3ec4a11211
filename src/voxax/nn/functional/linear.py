"""Linear layers on rows of features, in one native call on CPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax._native.operators import differentiable_operator
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import wide_fraction

_NATIVE = ("float32", "float64", "bfloat16")


@checked_operator
def linear(
    features: jax.Array,
    valid: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    *,
    precision: Any = None,
) -> jax.Array:
    """Return ``features @ weight + bias``, zero in rows that are not valid.

    Args:
      features: ``[N, C_in]``; rows that are not valid may hold anything.
      valid: ``bool[N]``.
      weight: ``[C_in, C_out]`` of the same dtype.
      bias: ``[C_out]`` of the same dtype, or None.
      precision: of the product, as ``jax.lax.dot_general`` takes it; the library's is full.
    """
    added: Any = np.zeros((0,), features.dtype) if bias is None else bias
    call = _linear if features.dtype.name in _NATIVE else _portable
    return call(features, valid, weight, added, precision=precision)[0]


def _portable(
    x: jax.Array, valid: jax.Array, weight: jax.Array, bias: jax.Array, *, precision: Any
) -> tuple[jax.Array, ...]:
    zero = jnp.zeros((), x.dtype)
    x = jnp.where(valid[:, None], x, zero)
    y = jax.lax.dot_general(x, weight, (((1,), (0,)), ((), ())), precision=precision)
    if bias.shape[0]:
        y = jnp.where(valid[:, None], y + bias[None, :], zero)
    return (y,)


def _value(call: Any, x: Any, valid: Any, weight: Any, bias: Any, *, precision: Any) -> Any:
    del precision
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[1]), x.dtype)
    return call("linear", (result,), x, valid, weight, bias)


def _gradients(
    call: Any,
    dy: Any,
    x: Any,
    valid: Any,
    weight: Any,
    bias: Any,
    y: Any,
    *,
    moves: tuple[int, ...],
    precision: Any,
) -> Any:
    del y, precision
    results = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct(weight.shape, x.dtype),
        jax.ShapeDtypeStruct(weight.shape[1:], wide_fraction(x.dtype)),
    )
    dx, dw, db = call("linear_gradients", results, dy, x, valid, weight)
    found = {0: dx, 2: dw, 3: db.astype(bias.dtype) if bias.shape[0] else db[:0]}
    return tuple(found[place] for place in moves)


_linear = differentiable_operator("voxax_linear", _value, _portable, _gradients)
