"""Rules for the dtypes of sums, means and products of features, and the limits of a dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.errors import AlgorithmError, InputError


def accumulator(dtype: Any) -> Any:
    """Return the dtype in which values of ``dtype`` are summed.

    It is float32 for half precision, int32 for bools and for 8- and 16-bit integers, and otherwise
    ``dtype`` itself. The function works under ``jax.numpy_dtype_promotion("strict")``, where
    ``jnp.promote_types`` raises.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype(jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype)
    dtype = jnp.dtype(dtype)
    counted = dtype.kind == "b" or (
        jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32
    )
    return jnp.dtype(jnp.int32) if counted else dtype


def clip_integers(value: Any, limit: int = 2**31 - 1) -> jax.Array:
    """Return ``value`` as an array; integers become int32, clipped to ``-limit`` to ``limit``.

    A cast of wide integers would wrap around. ``value`` is a number or array of any numeric dtype.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = np.int32(min(max(value, -limit), limit))
    array: Any = value if isinstance(value, np.ndarray | np.generic) else jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        return jnp.asarray(array)
    info = jnp.iinfo(array.dtype)
    if info.max > limit:
        array = array.clip(max(int(info.min), -limit), limit)
    return jnp.asarray(array.astype(np.int32))


def fraction_dtype(dtype: Any) -> Any:
    """Return the dtype of a result that is divided or scaled, such as a mean or a norm.

    It is float64 for 64-bit integers, float32 for other integers and bools, and otherwise ``dtype``
    itself.
    """
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    return jnp.dtype(jnp.float64 if dtype.itemsize == 8 else jnp.float32)


def wide_fraction(dtype: Any) -> Any:
    """Return the dtype in which a mean or norm of ``dtype`` is computed: float32 or wider."""
    return accumulator(fraction_dtype(dtype))


def common_dtype(*dtypes: Any) -> Any:
    """Return the dtype in which operands of the given dtypes are multiplied.

    Without JAX's 64-bit mode, NumPy arrays of 64 bits are multiplied in 32 bits.

    Raises:
      AlgorithmError: JAX has no common dtype for them, as for int4 and float32.
    """
    try:
        return jax.dtypes.canonicalize_dtype(jnp.promote_types(*dtypes))
    except ValueError as error:
        names = " and ".join(jnp.dtype(dtype).name for dtype in dtypes)
        raise AlgorithmError(
            f"features and weight of {names} have no common dtype: convert one of them with "
            f".astype(...). JAX says: {error}"
        ) from error


def product_dtype(dtype: Any) -> Any:
    """Return the dtype of a matrix product of two operands of ``dtype``.

    It is int32 for bools and for 8- and 16-bit integers, whose sums would not fit, and otherwise
    ``dtype`` itself. The product is accumulated in a wider dtype and rounded once.
    """
    return jnp.dtype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else accumulator(dtype)


def limits(dtype: Any) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a dtype, which are infinities for floats.

    Raises:
      InputError: the dtype is complex; complex numbers have no order.
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise InputError(
            f"features of {jnp.dtype(dtype).name} have no order, and so no minimum or maximum"
        )
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf, jnp.inf
    if jnp.dtype(dtype).kind == "b":
        return False, True
    info = jnp.iinfo(dtype)
    return info.min, info.max
