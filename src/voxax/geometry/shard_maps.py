"""The kernel maps of one shard of a scene, made on the host and carried by its geometry."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from voxax.geometry.attached import AttachedMaps
from voxax.geometry.halo import Halo
from voxax.geometry.kernel_map import KernelMap
from voxax.geometry.kernel_spec import KernelSpec
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

    def find(
        self,
        geometry: VoxelGeometry,
        spec: KernelSpec,
        out_geometry: VoxelGeometry | None,
        capacity: int | None = None,
    ) -> KernelMap | None:
        """The map of ``spec`` from ``geometry`` (one of these levels), or None.

        ``capacity`` has no say: shards have the capacities of their split.
        """
        if out_geometry not in (None, geometry) and out_geometry.attached is not self:
            return None
        for index, record in enumerate(self.records):
            if record.in_level != geometry.level or record.spec != spec:
                continue
            if out_geometry is not None and out_geometry.level != record.out_level:
                continue
            if out_geometry is not None:
                out = out_geometry.bare()
            elif record.out_level == record.in_level:
                out = geometry.bare()
            else:
                out = self.levels[record.out_level - 1]
            views = dict(zip(record.views, self.views[index], strict=True))
            return KernelMap(self.sources[index], out, spec, views, halo=self.halos[index])
        return None
