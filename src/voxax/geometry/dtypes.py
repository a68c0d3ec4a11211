"""Accumulator dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def accumulator(dtype: Any) -> Any:
    """float32 for half precision, int32 for 8- and 16-bit integers; any other dtype itself.

    Not ``jnp.promote_types``: that raises under ``jax.numpy_dtype_promotion("strict")``.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype(jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32:
        return jnp.dtype(jnp.int32)
    return jnp.dtype(dtype)


def product_dtype(dtype: Any) -> Any:
    """Dtype of a product of two operands of ``dtype``: int32 for 8- and 16-bit integers, whose
    products would not fit; otherwise ``dtype`` (accumulated wide, then rounded once)."""
    return accumulator(dtype) if jnp.issubdtype(dtype, jnp.integer) else jnp.dtype(dtype)


def limits(dtype: Any) -> tuple[Any, Any]:
    """The smallest and the largest value of a dtype; infinities where it has them."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf, jnp.inf
    info = jnp.iinfo(dtype)
    return info.min, info.max


def mean_of(total: jax.Array, number: jax.Array) -> jax.Array:
    """``total / number`` of one dtype; of integers rounded down, so that no value is cut to the
    digits of a float."""
    return total // number if jnp.issubdtype(total.dtype, jnp.integer) else total / number
