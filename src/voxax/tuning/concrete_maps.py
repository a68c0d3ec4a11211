"""Concrete maps: their densities, and the maps themselves until a product on one is measured.

A product is tuned when it is lowered, and by then even a concrete map has become an argument. So
each concrete map is noted before. Only weak references are kept: a map that the caller dropped is
not measured on, and no memory is held.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.geometry import KernelMap
from voxax.geometry.eager import known_on_cpu
from voxax.kernels import Layer, Problem
from voxax.tuning.entry import density_bucket

_maps: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


def observe(layer: Layer, kernel_map: KernelMap) -> Layer:
    """The layer with the density of a concrete map, which is noted; of a traced one as it is.

    The density is the bucketed number of pairs per output row, counted once for each map.
    """
    neighbors = kernel_map.view("neighbors")
    if _compat.is_traced(neighbors) or not getattr(neighbors, "is_fully_addressable", True):
        return layer

    def counted() -> float:
        # Padding, where it comes last, has no pairs.
        valid = kernel_map.out_geometry.valid
        if _compat.is_traced(valid) or not known_on_cpu(valid):
            return density(neighbors)
        mask = np.asarray(valid)
        count = int(np.count_nonzero(mask))
        return density(np.asarray(neighbors)[:count] if mask[:count].all() else neighbors)

    found = kernel_map.memo.get_or_build(("density",), neighbors, counted)
    layer = dataclasses.replace(layer, density=found)
    note_map(layer, neighbors)
    return layer


def density(neighbors: jax.Array | np.ndarray) -> float:
    """Bucketed pairs for each output row that has any, from the concrete table of neighbors."""
    if not known_on_cpu(neighbors):
        return density_bucket(*map(int, _pairs_and_rows(neighbors)))
    found = (np.asarray(neighbors) >= 0).view(np.int8)
    # Of short rows, einsum takes a third of the time of sum; int8 is enough below 128 taps.
    wide = np.int8 if found.shape[1] < 128 else np.int32
    pairs = np.einsum("ij->i", found, dtype=wide)
    return density_bucket(int(pairs.sum(dtype=np.int64)), int(np.count_nonzero(pairs)))


@jax.jit
def _pairs_and_rows(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pairs, and the output rows that have any, on a device: the table is large."""
    found = neighbors >= 0
    return jnp.sum(found, dtype=jnp.int32), jnp.sum(jnp.any(found, axis=1), dtype=jnp.int32)


def note_map(layer: Layer, array: jax.Array | np.ndarray) -> None:
    """Remember, weakly, the table of the layer's concrete map, or its sizes; the newest wins."""
    _maps[map_key(layer)] = array


def concrete_map(problem: Problem) -> dict[str, Any] | None:
    """The array of a noted map like this problem's, by name, or None."""
    array: Any = None if problem.layer.density is None else _maps.get(map_key(problem.layer))
    # NumPy arrays, of a plan made on the host, cannot be deleted.
    if array is None or (not isinstance(array, np.ndarray) and array.is_deleted()):
        return None
    return {"sizes" if problem.layer.kind == "dynamic" else "neighbors": array}


def map_key(layer: Layer) -> Hashable:
    """What the maps of layers have in common that are measured on one map."""
    map_of = layer.spec, layer.level, layer.in_capacity, layer.out_capacity, layer.symmetric
    return *map_of, layer.density, layer.sizes
