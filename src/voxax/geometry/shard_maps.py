"""The kernel maps of one shard of a scene, made on the host and carried by its geometry."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from voxax.geometry.attached import AttachedMaps
from voxax.geometry.halo import Halo
from voxax.geometry.voxel_geometry import VoxelGeometry


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class ShardMaps(AttachedMaps):
    """Maps whose inputs may lie on other shards. Transposed maps are records of their own.

    Attributes:
      levels: the shard's own voxels of level 1, 2, ...
      sources: for each record the extended set, own voxels and halo in canonical order.
      halos: for each record how features come there.
    """

    sources: tuple[VoxelGeometry, ...] = ()
    halos: tuple[Halo, ...] = ()

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        key = jax.tree_util.GetAttrKey
        names = ("levels", "views", "sources", "halos")
        return tuple((key(name), getattr(self, name)) for name in names), self.records

    @classmethod
    def tree_unflatten(cls, records: Any, children: Any) -> ShardMaps:
        levels, views, sources, halos = children
        return cls(levels, views, records, sources, halos)
