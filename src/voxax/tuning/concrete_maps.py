"""Record concrete (not traced) kernel maps and their densities, for later measurements.

The tuner measures when JAX lowers a convolution. By then the map is an argument of the program and
has no values, so concrete maps are recorded earlier, when the convolution is called. Only weak
references are stored: they keep no memory alive, and a map that the caller dropped is not used for
measurements.
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
    """Record a concrete kernel map of a layer, and return the layer with the map's density.

    The density is the result of :func:`density`, computed once for each map. If the map is traced,
    or has parts on other hosts, nothing is recorded and the layer is returned unchanged.
    """
    neighbors = kernel_map.view("neighbors")
    if _compat.is_traced(neighbors) or not getattr(neighbors, "is_fully_addressable", True):
        return layer

    def counted() -> float:
        # Padding rows have no pairs, so skip them if they are the last rows.
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
    """Return the mean number of neighbors of those output rows that have any neighbor.

    `neighbors` is the concrete table of a kernel map, ``int32[rows, taps]``, with -1 for missing
    neighbors. The result is rounded by :func:`density_bucket`.
    """
    if not known_on_cpu(neighbors):
        return density_bucket(*map(int, _pairs_and_rows(neighbors)))
    found = (np.asarray(neighbors) >= 0).view(np.int8)
    # For short rows, einsum takes a third of the time of sum; int8 is enough below 128 taps.
    wide = np.int8 if found.shape[1] < 128 else np.int32
    pairs = np.einsum("ij->i", found, dtype=wide)
    return density_bucket(int(pairs.sum(dtype=np.int64)), int(np.count_nonzero(pairs)))


@jax.jit
def _pairs_and_rows(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two counts of a neighbor table: its entries >= 0, and the rows with such an entry.

    `neighbors` is ``int32[out_capacity, K]``, with the input row at each of K kernel offsets or -1.
    """
    found = neighbors >= 0
    return jnp.sum(found, dtype=jnp.int32), jnp.sum(jnp.any(found, axis=1), dtype=jnp.int32)


def note_map(layer: Layer, array: jax.Array | np.ndarray) -> None:
    """Store a weak reference to a layer's concrete map, for :func:`concrete_map`.

    `array` is the neighbor table, or the kernel sizes of a dynamic convolution. It replaces the
    array of an earlier layer with the same :func:`map_key`.
    """
    _maps[map_key(layer)] = array


def concrete_map(problem: Problem) -> dict[str, Any] | None:
    """Return the array that :func:`note_map` stored for the problem's layer; None if there is none.

    The result is ``{"neighbors": array}``, or ``{"sizes": array}`` for a dynamic convolution.
    """
    array: Any = None if problem.layer.density is None else _maps.get(map_key(problem.layer))
    # NumPy arrays, from a plan made on the host, cannot be deleted.
    if array is None or (not isinstance(array, np.ndarray) and array.is_deleted()):
        return None
    return {"sizes" if problem.layer.kind == "dynamic" else "neighbors": array}


def map_key(layer: Layer) -> Hashable:
    """Return the key under which a layer's map is recorded; layers with equal keys share a map."""
    map_of = layer.spec, layer.level, layer.in_capacity, layer.out_capacity, layer.symmetric
    return *map_of, layer.density, layer.sizes
