"""Finding rows in a sorted coordinate list, by binary search and short walks.

No hash table and no atomics: the same result on every platform, every run.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from voxax.coords.ordering import rows_less

# Along the last axis the neighbours of a hit are adjacent rows; walking to the next
# offset costs one comparison per lattice step, a new search about log2(rows) of them.
_LONGEST_WALK = 8

Offsets = tuple[tuple[int, ...], ...]


@jax.jit
def lower_bound(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    """First row that is not less than each query.

    Args:
      sorted_coords: ``int32[N, W]`` in lexicographic order.
      queries: ``int32[..., W]``.

    Returns:
      ``int32[...]`` in ``[0, N]``.
    """
    rows = sorted_coords.shape[0]
    low = jnp.zeros(queries.shape[:-1], jnp.int32)
    high = jnp.full(queries.shape[:-1], rows, jnp.int32)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) >> 1
        row = sorted_coords.at[middle].get(mode="clip")
        less = rows_less(row, queries) & (low < high)
        return jnp.where(less, middle + 1, low), jnp.where(less, high, middle)

    low, _ = jax.lax.fori_loop(0, rows.bit_length(), halve, (low, high))
    return low


@jax.jit
def find_rows(sorted_coords: jax.Array, queries: jax.Array) -> jax.Array:
    """Row of each query, or -1. Shapes as in :func:`lower_bound`."""
    position = lower_bound(sorted_coords, queries)
    return jnp.where(_matches(sorted_coords, position, queries), position, -1)


def find_neighbors(
    sorted_coords: jax.Array, centers: jax.Array, valid: jax.Array, offsets: np.ndarray
) -> jax.Array:
    """Row of ``center + offset`` for every center and offset.

    Args:
      sorted_coords: ``int32[N, 1 + D]`` in canonical order.
      centers: ``int32[M, 1 + D]``, batch index first, any order.
      valid: ``bool[M]``; invalid centers find nothing.
      offsets: static ``int[K, D]`` in lexicographic order.

    Returns:
      ``int32[M, K]``, the row or -1. One search per run of offsets that share all
      but the last axis (9 for a 3x3x3 kernel), then a walk over adjacent rows.
    """
    taps = tuple(tuple(int(v) for v in offset) for offset in offsets)
    return _find_neighbors(sorted_coords, centers, valid, taps)


# Jitted, so that an eager call compiles one program per shape and kernel, not one per search.
@functools.partial(jax.jit, static_argnames="offsets")
def _find_neighbors(
    sorted_coords: jax.Array, centers: jax.Array, valid: jax.Array, offsets: Offsets
) -> jax.Array:
    found: list[jax.Array | None] = [None] * len(offsets)
    for run in _runs(offsets):
        position = None
        for step, k in run:
            query = centers + jnp.asarray([0, *step], jnp.int32)[None, :]
            if position is None:
                position = lower_bound(sorted_coords, query)
            hit = _matches(sorted_coords, position, query)
            if k is not None:
                found[k] = jnp.where(hit & valid, position, -1)
            position = position + hit.astype(jnp.int32)
    return jnp.stack([f for f in found if f is not None], axis=1)


def _matches(sorted_coords: jax.Array, position: jax.Array, queries: jax.Array) -> jax.Array:
    inside = position < sorted_coords.shape[0]
    rows = sorted_coords.at[position].get(mode="clip")
    return inside & jnp.all(rows == queries, axis=-1)


def _runs(offsets: Offsets) -> list[list[tuple[tuple[int, ...], int | None]]]:
    """Group offsets into walks of unit lattice steps; ``None`` marks steps in between."""
    runs: list[list[tuple[tuple[int, ...], int | None]]] = []
    order = sorted(range(len(offsets)), key=lambda k: offsets[k])
    for _, group in itertools.groupby(order, key=lambda k: offsets[k][:-1]):
        previous = None
        for k in group:
            offset = offsets[k]
            if previous is None or offset[-1] - previous > _LONGEST_WALK:
                runs.append([])
            else:
                runs[-1] += [((*offset[:-1], z), None) for z in range(previous + 1, offset[-1])]
            runs[-1].append((offset, k))
            previous = offset[-1]
    return runs
