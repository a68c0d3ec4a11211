"""KernelMap: the relation between input and output voxels, as a value."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.memo import Memo
from voxax.geometry.views import VIEW_BUILDERS
from voxax.geometry.voxel_geometry import VoxelGeometry
from voxax.geometry.windows import OPPOSITE_WINDOWS


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class KernelMap:
    """Which input row feeds which output row through which tap.

    What an algorithm needs of the relation are *views*: arrays derived from it, each
    built once and kept. ``neighbors`` always exists.

    Attributes:
      in_geometry: input voxels, without attached maps.
      out_geometry: output voxels, without attached maps.
      spec: the static relation.
      views: arrays by name that existed when the map was made.
    """

    in_geometry: VoxelGeometry
    out_geometry: VoxelGeometry
    spec: KernelSpec
    views: dict[str, jax.Array]
    memo: Memo = dataclasses.field(default_factory=Memo, repr=False)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        same = self.in_geometry is self.out_geometry
        names = tuple(sorted(self.views))
        key = jax.tree_util.GetAttrKey
        children = (
            (key("in_geometry"), self.in_geometry),
            (key("out_geometry"), None if same else self.out_geometry),
            (key("views"), tuple(self.views[name] for name in names)),
        )
        return children, (self.spec, names, same)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> KernelMap:
        spec, names, same = aux
        in_geometry, out_geometry, views = children
        by_name = dict(zip(names, views, strict=True)) if isinstance(views, tuple) else {}
        return cls(in_geometry, in_geometry if same else out_geometry, spec, by_name)

    @property
    def symmetric(self) -> bool:
        """One voxel set and centred taps: ``neighbors`` reversed along K is the adjoint's."""
        return (
            self.in_geometry is self.out_geometry and self.spec.keeps_coords and self.spec.symmetric
        )

    @property
    def num_offsets(self) -> int:
        return self.spec.num_offsets

    @property
    def in_capacity(self) -> int:
        return self.in_geometry.capacity

    @property
    def out_capacity(self) -> int:
        return self.out_geometry.capacity

    @property
    def neighbors(self) -> jax.Array:
        """``int32[out_capacity, K]``: input row under each tap, or -1."""
        return self.view("neighbors")

    def view(self, name: str) -> jax.Array:
        """The array called ``name``, built on first use and remembered.

        Raises:
          KeyError: no such view; the message lists the known ones.
        """
        if name in self.views:
            return self.views[name]
        if name not in VIEW_BUILDERS:
            raise KeyError(f"no view {name!r}; known views: {sorted(VIEW_BUILDERS)}")
        return self.memo.get_or_build(name, self.views, lambda: VIEW_BUILDERS[name](self))

    def transpose(self) -> KernelMap:
        """The adjoint's map: outputs and inputs change places."""
        if "neighbors" in self.views:
            swapped = {
                "neighbors": self.view("transposed_neighbors"),
                "transposed_neighbors": self.view("neighbors"),
            }
        else:
            swapped = {"neighbors": self.view("transposed_neighbors")}
        if "pairs" in self.views and "pair_starts" in self.views:
            swapped["pairs"] = self.views["pairs"][::-1]
            swapped["pair_starts"] = self.views["pair_starts"]
        for name, other in OPPOSITE_WINDOWS.items():
            if name in self.views:
                swapped[other] = self.views[name]
        return KernelMap(self.out_geometry, self.in_geometry, self.spec.adjoint(), swapped)

    def __repr__(self) -> str:
        return (
            f"KernelMap({self.spec}: {self.in_capacity} -> {self.out_capacity} rows, "
            f"{self.num_offsets} taps, views {sorted(self.views)})"
        )
