"""Accumulator dtypes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def accumulator(dtype: Any) -> Any:
    """float32 for half precision; any other dtype itself.

    Not ``jnp.promote_types``: that raises under ``jax.numpy_dtype_promotion("strict")``.
    """
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32 if half else dtype)
