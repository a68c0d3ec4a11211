"""Kernel maps built ahead of a trace and carried by the geometry as immutable children."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

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
