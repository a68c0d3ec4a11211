"""Dtypes of results: of sums, fractions and products, and the limits of a dtype."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from voxax.errors import AlgorithmError, InputError


def accumulator(dtype: Any) -> Any:
    """float32 for half precision, int32 for bools and 8- and 16-bit integers; any other itself.

    Not ``jnp.promote_types``: that raises under ``jax.numpy_dtype_promotion("strict")``.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype(jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype)
    dtype = jnp.dtype(dtype)
    counted = dtype.kind == "b" or (
        jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32
    )
    return jnp.dtype(jnp.int32) if counted else dtype


def fraction_dtype(dtype: Any) -> Any:
    """Dtype of what is divided or scaled: float32 for bools and integers, float64 for those of 64
    bits; a floating-point dtype itself.

    The result of every mean, norm or factor has it. An integer one would cut the fraction off, and
    sums of integers would wrap around.
    """
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    return jnp.dtype(jnp.float64 if dtype.itemsize == 8 else jnp.float32)


def wide_fraction(dtype: Any) -> Any:
    """Dtype in which fractions of ``dtype`` are computed: float32 or wider."""
    return accumulator(fraction_dtype(dtype))


def common_dtype(*dtypes: Any) -> Any:
    """The dtype in which operands of these dtypes are multiplied.

    Raises:
      AlgorithmError: JAX promotes them to none, as int4 and float32.
    """
    try:
        return jnp.promote_types(*dtypes)
    except ValueError as error:
        names = " and ".join(jnp.dtype(dtype).name for dtype in dtypes)
        raise AlgorithmError(
            f"features and weight of {names} have no common dtype: convert one of them with "
            f".astype(...). JAX says: {error}"
        ) from error


def product_dtype(dtype: Any) -> Any:
    """Dtype of a product of two operands of ``dtype``: int32 for 8- and 16-bit integers, whose
    sums would not fit; otherwise ``dtype`` (accumulated wide, then rounded once)."""
    return jnp.dtype(dtype) if jnp.issubdtype(dtype, jnp.inexact) else accumulator(dtype)


def limits(dtype: Any) -> tuple[Any, Any]:
    """The smallest and the largest value of a dtype; infinities where it has them.

    Raises:
      InputError: complex numbers have no order.
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
