"""Kernel maps built ahead of a trace and carried by the geometry as immutable children."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from voxax.geometry.kernel_map import KernelMap
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.voxel_geometry import VoxelGeometry


@dataclasses.dataclass(frozen=True)
class MapRecord:
    """One map of a plan: static, hashable, picklable.

    Attributes:
      in_level, out_level: indices into the plan's levels; 0 is the input.
      spec: the relation.
      views: names of the arrays kept, sorted.
    """

    in_level: int
    spec: KernelSpec
    out_level: int
    views: tuple[str, ...]


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class AttachedMaps:
    """Levels and map arrays in a fixed order; their description is static.

    Attributes:
      levels: geometries of level 1, 2, ... (level 0 is the geometry that carries this).
      views: for each record its arrays, in the order of ``record.views``.
      records: what the arrays are.
    """

    levels: tuple[VoxelGeometry, ...]
    views: tuple[tuple[jax.Array, ...], ...]
    records: tuple[MapRecord, ...]

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        key = jax.tree_util.GetAttrKey
        return ((key("levels"), self.levels), (key("views"), self.views)), self.records

    @classmethod
    def tree_unflatten(cls, records: Any, children: Any) -> AttachedMaps:
        levels, views = children
        return cls(levels, views, records)

    def find(
        self,
        geometry: VoxelGeometry,
        spec: KernelSpec,
        out_geometry: VoxelGeometry | None,
        capacity: int | None = None,
    ) -> KernelMap | None:
        """The attached map of ``spec`` from ``geometry`` (one of these levels), or None.

        With ``capacity`` only one whose outputs have exactly so many rows.
        """
        out_level = None
        if out_geometry is not None:
            # Only levels of this very plan are known; an equal index in another plan means
            # other voxels.
            if out_geometry is not geometry and out_geometry.attached is not self:
                return None
            out_level = out_geometry.level
        for record, arrays in zip(self.records, self.views, strict=True):
            views = dict(zip(record.views, arrays, strict=True))
            if record.in_level == geometry.level and record.spec == spec:
                if out_level is None or out_level == record.out_level:
                    same = record.out_level == record.in_level
                    bare = geometry.bare()
                    out = bare if same else self._level(record.out_level, out_geometry)
                    if out is None or capacity not in (None, out.capacity):
                        continue
                    return KernelMap(bare, out, spec, views)
            elif (
                out_geometry is not None
                and record.spec.relation == spec.adjoint().relation
                and record.in_level == out_level
                and record.out_level == geometry.level
            ):
                forward = KernelMap(out_geometry.bare(), geometry.bare(), record.spec, views)
                return forward.transpose()
        return None

    def _level(self, level: int, out_geometry: VoxelGeometry | None) -> VoxelGeometry | None:
        if out_geometry is not None:
            return out_geometry.bare()
        return self.levels[level - 1] if level > 0 else None
