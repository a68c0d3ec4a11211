"""Shards to devices, also of several hosts."""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from voxax.errors import InputError

Tree = TypeVar("Tree")


def on_mesh(shards: Tree, mesh: Mesh, axis: str = "data") -> Tree:
    """Arrays ``[shards, ...]`` as global arrays, one shard on each place of the mesh's axis.

    Args:
      shards: a pytree of arrays with a leading axis: the shards of this process's devices. With
        one process, all of them.
      mesh: the devices.
      axis: name of the mesh's axis that shards lie along.

    Returns:
      The same tree with global ``jax.Array`` leaves ``[mesh.shape[axis], ...]``.

    Raises:
      InputError: no such axis, or another number of shards than this process has places.
    """
    if axis not in mesh.shape:
        raise InputError(f"the mesh has axes {tuple(mesh.shape)}, none is called {axis!r}")
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    total = mesh.shape[axis]
    # A process has the places along the axis that any device of its own holds.
    own = len({index[0].start or 0 for index in _own_places(sharding, total)})
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


def _own_places(sharding: NamedSharding, total: int) -> list[tuple[slice, ...]]:
    return list(sharding.addressable_devices_indices_map((total,)).values())  # type: ignore[arg-type]
