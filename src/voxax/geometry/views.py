"""Arrays that algorithms ask a KernelMap for, each with the function that builds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from voxax.geometry.kernel_map import KernelMap


@functools.partial(jax.jit, static_argnames="in_capacity")
def invert_neighbors(neighbors: jax.Array, in_capacity: int) -> jax.Array:
    """Read a neighbour table backwards.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1. For one tap, no two
        outputs share an input (``in = out * stride + offset`` determines ``out``).
      in_capacity: number of input rows.

    Returns:
      ``int32[in_capacity, K]``, output row or -1.
    """
    out_capacity, taps = neighbors.shape
    rows = jnp.broadcast_to(jnp.arange(out_capacity, dtype=jnp.int32)[:, None], neighbors.shape)
    tap = jnp.broadcast_to(jnp.arange(taps, dtype=jnp.int32)[None, :], neighbors.shape)
    target = jnp.where(neighbors < 0, in_capacity, neighbors)
    empty = jnp.full((in_capacity, taps), -1, jnp.int32)
    return empty.at[target, tap].set(rows, mode="drop")


def _transposed_neighbors(kernel_map: KernelMap) -> jax.Array:
    neighbors = kernel_map.view("neighbors")
    if kernel_map.symmetric:
        return neighbors[:, ::-1]
    return invert_neighbors(neighbors, kernel_map.in_capacity)


VIEW_BUILDERS: dict[str, Callable[[KernelMap], jax.Array]] = {
    "transposed_neighbors": _transposed_neighbors,
}
"""``transposed_neighbors int32[in_capacity, K]``: the output row that each input row
feeds through each tap, or -1."""
