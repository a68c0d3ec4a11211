"""Kernel maps that are concrete right now, so that a product is measured on the caller's own map.

A product is tuned when it is lowered, and by then even a concrete map has become an argument.
So :mod:`voxax.products` notes each concrete map before. Only weak references are kept: what the
caller has dropped cannot be measured on, and no memory is held.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.algorithms import Problem

_MOST_MAPS = 64

_lock = threading.Lock()
_maps: collections.OrderedDict[Hashable, dict[str, weakref.ref[jax.Array]]]
_maps = collections.OrderedDict()


def note(key: Hashable, views: Mapping[str, jax.Array]) -> None:
    """Remember, weakly, the arrays of the map that :func:`map_key` names; the newest wins.

    A view computed from them inside a trace is left out: it means nothing outside.
    """
    concrete = {k: array for k, array in views.items() if not _compat.is_traced(array)}
    with _lock:
        _maps[key] = {name: weakref.ref(array) for name, array in concrete.items()}
        _maps.move_to_end(key)
        while len(_maps) > _MOST_MAPS:
            _maps.popitem(last=False)


def find(problem: Problem) -> dict[str, jax.Array] | None:
    """The arrays of a map like this problem's, or None."""
    if problem.density is None:
        return None
    with _lock:
        known = _maps.get(map_key(problem))
    if known is None:
        return None
    alive = {name: array for name, ref in known.items() if (array := ref()) is not None}
    # NumPy arrays, of a plan made on the host, cannot be deleted.
    usable = {n: a for n, a in alive.items() if isinstance(a, np.ndarray) or not a.is_deleted()}
    return usable if {"neighbors", "transposed_neighbors", "sizes"} & set(usable) else None


def map_key(of: Any) -> Hashable:
    """What a map is noted under, from a problem or from a layer: both describe their map alike."""
    described = of.spec, of.level, of.in_capacity, of.out_capacity, of.symmetric, of.density
    return *described, of.grid, of.tile_density, of.prefix
