"""Shards to devices, also of several hosts."""

from __future__ import annotations

import math
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from voxax.errors import InputError

Tree = TypeVar("Tree")


Axes = str | tuple[str, ...]


def on_mesh(shards: Tree, mesh: Mesh, axis: Axes = "data") -> Tree:
    """Arrays ``[shards, ...]`` as global arrays, one shard on each place of the mesh's axis.

    Args:
      shards: a pytree of arrays with a leading axis: the shards of this process's devices. With
        one process, all of them.
      mesh: the devices.
      axis: name of the mesh's axis that shards lie along, or several, the last one fastest.

    Returns:
      The same tree with global ``jax.Array`` leaves ``[places along the axis, ...]``.

    Raises:
      InputError: no such axis, or another number of shards than this process has places.
    """
    own, total = len(places_of(mesh, axis)), _places(mesh, axis)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shards):
        if np.ndim(leaf) < 1 or np.shape(leaf)[0] != own:
            raise InputError(
                f"{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}: this process has "
                f"{own} of the {total} places along {axis!r}, so its leading axis must be {own}"
            )

    def place(leaf: jax.Array | np.ndarray) -> jax.Array:
        local = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, local, (total, *local.shape[1:]))

    return jax.tree.map(place, shards)


def places_of(mesh: Mesh, axis: Axes = "data") -> tuple[int, ...]:
    """The places along an axis of a mesh, or several, that devices of this process hold, ascending.

    Raises:
      InputError: no such axis.
    """
    total = _places(mesh, axis)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    held = sharding.addressable_devices_indices_map((total,)).values()
    starts = (index[0].start for index in held if index is not None)
    return tuple(sorted({0 if start is None else start for start in starts}))


def _places(mesh: Mesh, axis: Axes) -> int:
    names = (axis,) if isinstance(axis, str) else axis
    for name in names:
        if name not in mesh.shape:
            raise InputError(f"the mesh has axes {tuple(mesh.shape)}, none is called {name!r}")
    return math.prod(mesh.shape[name] for name in names)
