"""VoxelGeometry: which voxels exist, and the kernel maps that it carries.

Maps that were built ahead of the trace are attached: immutable children of the pytree. Maps that
are built while the geometry is used are remembered in its private :class:`Memo`. Both are data
here; :mod:`voxax.geometry.build` finds or builds a map.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.coords import bucket_capacity, is_valid
from voxax.errors import CapacityError
from voxax.geometry.halo import Halo
from voxax.geometry.kernel_spec import KernelSpec


class Memo:
    """Values by key, so that each map and view is built once. Not a pytree child.

    A value is computed from the owner's own arrays, at the trace level where those live. It may be
    used wherever the owner may, inside ``scan`` bodies and gradients too, and it dies with the
    owner: no tracer outlives its trace, and flattening the owner leaves the memo behind.
    """

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table: dict[Hashable, Any] = {}

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, or None."""
        return self._table.get(key)

    def get_or_build(self, key: Hashable, arrays: Any, build: Callable[[], Any]) -> Any:
        """The value under ``key``, built at the trace level of ``arrays`` if it is new.

        Args:
          key: names the value.
          arrays: every array that ``build`` reads (a pytree). Where they live at different
            trace levels the result belongs to the innermost one and is not remembered.
          build: makes the value.
        """
        trace_level = _compat.context_of(arrays)
        if trace_level is None:
            return build()
        value = self.get(key)
        if value is None:
            with trace_level:
                value = build()
            self._table[key] = value
        return value

    def names(self) -> tuple[Hashable, ...]:
        return tuple(self._table)

    def values(self) -> tuple[Any, ...]:
        return tuple(self._table.values())


Level = tuple[int, ...]


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class VoxelGeometry:
    """The coordinates of a sparse tensor: canonical order, no duplicates, static capacity.

    Attributes:
      coords: ``int32[capacity, 1 + D]``: batch index, then D lattice coordinates in
        units of this level's own lattice. Rows ``>= count`` hold ``PAD``.
      count: ``int32[]``, number of valid rows.
      drops: rows lost to capacity, ``int32[]`` by level (the level's total stride).
        It travels through every layer, so the last output knows of every loss.
      attached: maps built ahead of time by ``vx.plan``, or None.
      stride: total stride relative to the input voxels, one integer per axis; static.
      batch_size: number of scenes; static.
      level: index of this geometry among the attached levels; static, -1 if not one.
      level_capacities: ``((stride, capacity), ...)`` that strided layers use when they
        are not given one; static.
      split_over: name of the mesh axis that the scene is split over, of which these voxels are one
        shard; None for whole scenes; static. See :mod:`voxax.parallel`.
    """

    coords: jax.Array
    count: jax.Array
    drops: dict[Level, jax.Array]
    attached: AttachedMaps | None
    stride: Level
    batch_size: int
    level: int = 0
    level_capacities: tuple[tuple[Level, int], ...] = ()
    split_over: str | None = None
    memo: Memo = dataclasses.field(default_factory=Memo, repr=False)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        levels = tuple(sorted(self.drops))
        key = jax.tree_util.GetAttrKey
        children = (
            (key("coords"), self.coords),
            (key("count"), self.count),
            (key("drops"), tuple(self.drops[level] for level in levels)),
            (key("attached"), self.attached),
        )
        static = self.stride, self.batch_size, self.level, self.level_capacities, self.split_over
        return children, (levels, *static)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> VoxelGeometry:
        levels, *static = aux
        coords, count, drops, attached = children
        by_level = dict(zip(levels, drops, strict=True)) if isinstance(drops, tuple) else {}
        return cls(coords, count, by_level, attached, *static)

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.coords.shape[0]

    @property
    def ndim(self) -> int:
        """Number of spatial axes, D."""
        return self.coords.shape[1] - 1

    @property
    def num_dropped(self) -> jax.Array:
        """``int32[]``: rows lost to capacity, here and in every level this one came through."""
        total = sum(self.drops.values())
        is_array = isinstance(total, jax.Array | np.ndarray | np.generic)
        return total if is_array else jnp.asarray(total, jnp.int32)  # type: ignore[return-value]

    @property
    def valid(self) -> jax.Array:
        """``bool[capacity]``: which rows are voxels."""
        return is_valid(self.coords)

    def bare(self) -> VoxelGeometry:
        """These coordinates without attached or remembered maps.

        This is what a KernelMap holds: the memo of the geometry it was asked from holds the
        map, and a cycle would keep device memory until Python's next garbage collection.
        """
        return dataclasses.replace(self, attached=None, memo=Memo())

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays that building a map reads."""
        return self.coords, self.count, self.drops

    def with_drops_of(self, other: VoxelGeometry) -> VoxelGeometry:
        """These coordinates, also reporting what ``other`` lost on its way here."""
        more = {
            level: jnp.maximum(self.drops[level], lost) if level in self.drops else lost
            for level, lost in other.drops.items()
            if self.drops.get(level) is not lost
        }
        return dataclasses.replace(self, drops={**self.drops, **more}) if more else self

    def same_as(self, other: VoxelGeometry) -> bool:
        """True where both hold the same voxels: identical arrays, or proven equal eagerly."""
        if self is other or (self.coords is other.coords and self.count is other.count):
            return True
        if self.coords.shape != other.coords.shape or self.stride != other.stride:
            return False
        if self.batch_size != other.batch_size:
            return False
        if _compat.is_traced(self.coords, other.coords):
            return False
        return bool(np.array_equal(np.asarray(self.coords), np.asarray(other.coords)))

    def raise_if_overflowed(self) -> None:
        """Raise on the host when any level lost rows.

        Raises:
          CapacityError: names each level, and how many rows it lost.
          TypeError: called on traced values (inside ``jax.jit``).
        """
        if _compat.is_traced(self.drops):
            raise TypeError(
                "raise_if_overflowed() needs concrete values: return num_dropped (or the voxels) "
                "from the jitted function and call it outside"
            )
        lost = {level: int(n) for level, n in self.drops.items() if int(n)}
        if lost:
            needed = self.capacity + lost.get(self.stride, 0)
            here = {self.stride: f" (needs {needed}, capacity {self.capacity})"}
            levels = "; ".join(
                f"level of stride {level}: {n} rows lost{here.get(level, '')}"
                for level, n in sorted(lost.items())
            )
            raise CapacityError(
                f"capacity overflow: {levels}. Give a larger capacity=, or refit the level "
                "capacities with vx.plan on samples that are as large as this one"
            )

    def __repr__(self) -> str:
        count = "traced" if _compat.is_traced(self.count) else int(self.count)
        maps = f", {len(self.attached.records)} maps attached" if self.attached is not None else ""
        part = "" if self.split_over is None else f", one shard along {self.split_over!r}"
        return (
            f"VoxelGeometry({count} of {self.capacity} voxels, {self.ndim}D, "
            f"stride {self.stride}, batch_size {self.batch_size}{maps}{part})"
        )


def check_overflow(count: jax.Array, num_dropped: jax.Array, level: Level) -> None:
    """Raise :class:`CapacityError` when rows were lost and that can be known (eagerly)."""
    if _compat.is_traced(num_dropped) or not int(num_dropped):
        return
    given, needed = int(count), int(count) + int(num_dropped)
    raise CapacityError(
        f"{needed} voxels at the level of stride {level} do not fit into capacity {given}: "
        f"give capacity={bucket_capacity(needed)} (vx.bucket_capacity({needed})) or more"
    )


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


@jax.tree_util.register_dataclass
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
    records: tuple[MapRecord, ...] = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
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
