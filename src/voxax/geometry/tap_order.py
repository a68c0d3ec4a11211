"""Output rows in the order of the taps they have, so that a tile of them passes over the others.

Sorting by a bit mask of present taps is what spconv and TorchSparse++ do for their implicit GEMMs
(Tang et al., TorchSparse++, MICRO 2023).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

SIDE_OF_SORTED = {
    "sorted_neighbors": "neighbors",
    "transposed_sorted_neighbors": "transposed_neighbors",
}
"""The table of which each of these views is the sorted form."""
OPPOSITE_SORTED = {
    "sorted_neighbors": "transposed_sorted_neighbors",
    "transposed_sorted_neighbors": "sorted_neighbors",
}
"""The view of the transposed map that is this view."""
_BITS = 32


def bits_of_taps(taps: int) -> np.ndarray:
    """``uint32[taps]``: the bit that stands for each tap; neighbours share one where 32 are few."""
    shared = max(1, -(-taps // _BITS))
    return np.left_shift(np.uint32(1), (np.arange(taps) // shared).astype(np.uint32))


@jax.jit
def sort_by_taps(neighbors: jax.Array) -> jax.Array:
    """The table with rows that have the same taps next to each other, tap by tap.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1.

    Returns:
      ``int32[K + 1, out_capacity]``: for each tap the input rows or -1; in the last row, which
      output row each column is. Columns without any neighbour come last; columns of equal taps
      keep their order.
    """
    rows, taps = neighbors.shape
    bits = jnp.asarray(bits_of_taps(taps))[None, :]
    zero = jnp.uint32(0)
    masks = jax.lax.reduce(
        jnp.where(neighbors >= 0, bits, zero), np.uint32(0), jax.lax.bitwise_or, (1,)
    )
    places = jnp.arange(rows, dtype=jnp.int32)
    _, order = jax.lax.sort((~masks, places), num_keys=1, is_stable=True)
    return jnp.concatenate([neighbors[order].T, order[None, :]])
