"""A plain matrix product, by which the counter is checked: its floor is known."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def product(size: int = 4096, dtype: str = "bfloat16") -> tuple[Any, ...]:
    """``a @ b`` of square matrices: what to compile."""
    shape = jax.ShapeDtypeStruct((size, size), jnp.dtype(dtype))
    return jnp.dot, shape, shape
