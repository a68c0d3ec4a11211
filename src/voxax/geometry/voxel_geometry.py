"""VoxelGeometry: the coordinates of voxels, together with the kernel maps between them.

Kernel maps that were built ahead of the trace are attached: they are children of the pytree. Kernel
maps that are built while the geometry is used are kept in its private :class:`Memo`. This module
only stores maps; :mod:`voxax.geometry.build` finds or builds them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.monitoring
import numpy as np

from voxax import _compat, _limits
from voxax._array_types import Array, Int32
from voxax.coords import PAD, bucket_capacity
from voxax.errors import CapacityError, InputError
from voxax.geometry.eager import in_either, text_of
from voxax.geometry.halo import Halo
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.lost_rows import Level, LostRows


class Held:
    """A dictionary key that holds an array. Two keys are equal if they hold the same array.

    Arrays are compared by identity, and the key keeps its array alive.
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = _compat.origin(array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


class Memo:
    """A cache of values that are computed from the arrays of one owner, such as a VoxelGeometry.

    Each value is computed once, at the trace level of the owner's arrays. So a value may be used
    wherever the owner may be used, also inside ``scan`` bodies and gradients. The memo lives as
    long as the owner, so no tracer outlives its trace. It is no child of the owner as a pytree:
    flattening drops it. An owner that was unpickled, or that has other arrays, has an empty memo.
    """

    __slots__ = ("_owner", "_table")

    def __init__(self) -> None:
        self._owner: tuple[tuple[Any, ...], Hashable] | None = None
        self._table: dict[Hashable, tuple[Any, Snapshot, Any]] = {}

    def __reduce__(self) -> Any:
        return Memo, ()

    def owned_by(self, arrays: tuple[Any, ...], facts: Hashable) -> Memo:
        """Return this memo if it has no owner yet or the given owner, else a new memo.

        Args:
          arrays: the owner's arrays, which are compared by identity.
          facts: the owner's static values, which are compared by ``==``.
        """
        if self._owner is None:
            self._owner = arrays, facts
            return self
        known, known_facts = self._owner
        same = len(known) == len(arrays) and all(map(operator.is_, known, arrays))
        return self if same and known_facts == facts else Memo().owned_by(arrays, facts)

    def get(self, key: Hashable) -> Any:
        """Return the value under ``key``, or None if there is none that can be used here.

        A value cannot be used if NumPy arrays that it was computed from were modified since, or if
        it was remembered for another trace only.
        """
        value, snapshot, trace = self._table.get(key, (None, (), None))
        if trace is not None and trace != _compat.current_trace():
            return None
        return value if all(np.array_equal(array, copy) for array, copy in snapshot) else None

    def get_or_build(self, key: Hashable, arrays: Any, build: Callable[[], Any]) -> Any:
        """Return the value under ``key``, or build and remember it.

        Args:
          key: the key that the value is remembered under.
          arrays: a pytree of every array that ``build`` reads. The value is built at their trace
            level. If they have different trace levels, the value is not remembered. If JAX hides
            the levels, the value is remembered for the current trace only.
          build: a function that returns the value.
        """
        trace_level, trace = _compat.context_of(arrays), None
        if trace_level is None:
            if not _compat.is_hidden(arrays):
                return build()
            trace_level, trace = contextlib.nullcontext(), _compat.current_trace()
        value = self.get(key)
        if value is None:
            snapshot = _snapshot(arrays)
            with trace_level, _compat.own_traces():
                value = build()
            self._table[key] = value, snapshot, trace
        return value

    def only(self, key: Hashable) -> Memo:
        """Return a memo with only the value under ``key``, if there is one."""
        memo = Memo()
        if (known := self._table.get(key)) is not None:
            memo._table[key] = known
        return memo

    def names(self) -> tuple[Hashable, ...]:
        return tuple(self._table)

    def values(self) -> tuple[Any, ...]:
        return tuple(value for value in map(self.get, self._table) if value is not None)


# Pairs of a writeable NumPy array and a copy of it.
Snapshot = tuple[tuple[np.ndarray, np.ndarray], ...]


def _snapshot(arrays: Any) -> Snapshot:
    found = (leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, np.ndarray))
    return tuple((array, array.copy()) for array in found if array.flags.writeable)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class VoxelGeometry:
    """The coordinates of a sparse tensor: sorted rows without duplicates, then padding rows.

    Attributes:
      coords: ``int32[capacity, 1 + D]``: scene (batch index), then D lattice coordinates in units
        of ``stride``. Rows ``>= count`` are padding and filled with ``PAD``.
      count: ``int32[]``, number of valid rows.
      drops: number of rows that did not fit a capacity, by the total stride of the level that lost
        them. Every layer passes it on, so the last output reports every loss. A dict
        ``{stride: int32[]}`` is converted.
      attached: kernel maps that ``vx.plan`` built ahead for these coordinates, or None. A copy with
        other coordinates, stride or batch size has None, and no ``level_capacities``.
      stride: total stride relative to the input voxels, one integer per axis; static.
      batch_size: number of scenes; static.
      level: index of this geometry among the levels of the plan, 0 without a plan; static.
      level_capacities: ``((stride, capacity), ...)``, the output capacity of strided layers without
        ``capacity=``, by total stride; static.
      split_over: name of the mesh axis along which a scene is split, if these voxels are one
        shard of the scene; None for whole scenes; static. See :mod:`voxax.parallel`.
      memo: kernel maps and other arrays that were built for these coordinates.
    """

    coords: Int32[Array, "capacity coord"]
    count: Int32[Array, ""]
    drops: LostRows
    attached: AttachedMaps | None
    stride: Level
    batch_size: int
    level: int = 0
    level_capacities: tuple[tuple[Level, int], ...] = ()
    split_over: str | None = None
    memo: Memo = dataclasses.field(default_factory=Memo, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.drops, dict):
            object.__setattr__(self, "drops", LostRows.of(self.drops))
        self._own()

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own()

    def _own(self) -> None:
        """Remove attached maps and cached arrays that were built for other voxels.

        ``attached`` becomes None, and ``memo`` becomes an empty cache.
        """
        attached = self.attached
        if isinstance(attached, AttachedMaps) and not attached.belong_to(self):
            object.__setattr__(self, "attached", None)
            object.__setattr__(self, "level_capacities", ())  # these were for the same voxels
        # The memo stays valid if only `attached` differs: attached maps equal maps built later.
        memo = self.memo.owned_by((self.coords, self.count), self._static)
        object.__setattr__(self, "memo", memo)

    @property
    def _static(self) -> tuple[Any, ...]:
        return self.stride, self.batch_size, self.level, self.level_capacities, self.split_over

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        key = jax.tree_util.GetAttrKey
        children = (
            (key("coords"), self.coords),
            (key("count"), self.count),
            (key("drops"), self.drops),
            (key("attached"), self.attached),
        )
        return children, self._static

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> VoxelGeometry:
        coords, count, drops, attached = children
        # Kernel maps read these integer arrays, so remove tangents that a transformation adds.
        coords, count = map(_compat.without_tangent, (coords, count))
        return cls(coords, count, drops, attached, *aux)

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.coords.shape[0]

    @property
    def ndim(self) -> int:
        """Number of spatial axes, D."""
        if self.coords.ndim > 2:
            raise InputError(
                f"the coordinates of these voxels are {list(self.coords.shape)}, with a leading "
                "axis, as if several Voxels were stacked: call the function under jax.vmap, which "
                "maps over that axis"
            )
        return self.coords.shape[1] - 1

    @property
    def num_dropped(self) -> jax.Array:
        """``int32[]``, number of voxels that did not fit a capacity, here and in earlier layers."""
        return self.drops.number

    @property
    def valid(self) -> jax.Array:
        """``bool[capacity]``, True for voxels and False for padding."""
        if isinstance(self.coords, np.ndarray):  # may be written to
            return _valid(self.coords)
        if (known := self.memo.get("valid")) is not None:
            return known
        return self.memo.get_or_build("valid", self.coords, lambda: _valid(self.coords))

    @functools.cached_property
    def is_on_explicit_mesh(self) -> bool:
        """Whether an array of this geometry, or of its maps, is on a mesh with explicit axes."""
        return _compat.is_on_explicit_mesh(jax.tree.leaves(self))

    def bare(self) -> VoxelGeometry:
        """Return this geometry without attached or remembered maps, for a KernelMap to refer to.

        The memo of this geometry refers to its kernel maps. If the maps referred back to it, the
        cycle would keep device memory until Python's next garbage collection.
        """
        return dataclasses.replace(self, attached=None, memo=self.memo.only("valid"))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays from which kernel maps are built: coordinates, count and lost rows."""
        return self.coords, self.count, self.drops

    def with_drops_of(self, other: VoxelGeometry) -> VoxelGeometry:
        """Return this geometry; its ``drops`` become the larger of its own and those of ``other``.

        The numbers of lost rows are compared level by level.
        """
        drops = self.drops.joined(other.drops)
        return self if drops is self.drops else dataclasses.replace(self, drops=drops)

    def same_as(self, other: VoxelGeometry) -> bool:
        """Return whether both geometries are known to have the same voxels.

        Concrete coordinates are compared by value. Traced coordinates must be the same array. It
        may have passed through layers that keep the coordinates, ``jit``, ``checkpoint``, custom
        derivatives and loops.
        """
        if self is other or (self.coords is other.coords and self.count is other.count):
            return True
        if self.coords.shape != other.coords.shape or self.stride != other.stride:
            return False
        if self.batch_size != other.batch_size:
            return False
        return _compat.known_equal(self.coords, other.coords)

    def difference(self, other: VoxelGeometry) -> str:
        """Describe for an error message how the coordinates of two geometries differ.

        The text is empty if the coordinates are traced or do not differ.
        """
        if (
            _compat.is_traced(self.coords, other.coords)
            or self.coords.shape[1] != (other.coords.shape[1])
        ):
            return ""
        first, second = (np.asarray(g.coords)[: int(g.count)].tolist() for g in (self, other))
        both = len(set(map(tuple, first)) & set(map(tuple, second)))
        pairs = enumerate(zip(first, second, strict=False))
        row = next((place for place, (a, b) in pairs if a != b), None)
        if row is None:
            return ""
        return (
            f" ({both} voxels are in both; the first others are {first[row]} and {second[row]}, at "
            f"row {row})"
        )

    def raise_if_overflowed(self) -> None:
        """Raise an error if voxels did not fit a capacity, here or in earlier layers.

        Raises:
          CapacityError: a level lost rows; the message names each level and its number of rows.
          TypeError: the values are traced (inside ``jax.jit``).
        """
        if _compat.is_traced(self.drops.table):
            raise TypeError(
                "raise_if_overflowed() needs concrete values: return num_dropped (or the voxels) "
                "from the jitted function and call it outside"
            )
        lost = {level: n for level, n in self.drops.items() if n}
        if lost:
            needed = self.capacity + lost.get(self.stride, 0)
            here = {self.stride: f" (needs {needed}, capacity {self.capacity})"}
            levels = "; ".join(
                f"level of stride {level}: {n} rows lost{here.get(level, '')}"
                for level, n in sorted(lost.items())
            )
            raise CapacityError(
                f"capacity overflow: {levels}. Give a larger capacity=, or refit the level "
                "capacities with vx.plan on samples that are as large as this one. Under jax.jit, "
                "sums of voxels on other coordinates lose rows too: vx.union(a, b) keeps them"
            )

    def __repr__(self) -> str:
        shape = getattr(self.coords, "shape", ())
        size = f"{shape[-2]} voxels, {shape[-1] - 1}D" if len(shape) > 1 else f"{self.coords!r}"
        stack = f", stacked {list(shape[:-2])}" if len(shape) > 2 else ""
        records = getattr(self.attached, "records", None)
        maps = "" if records is None else f", {len(records)} maps attached"
        part = "" if self.split_over is None else f", one shard along {self.split_over!r}"
        return (
            f"VoxelGeometry({text_of(self.count)} of {size}, "
            f"stride {self.stride}, batch_size {self.batch_size}{maps}{part}{stack})"
        )


@in_either()
def _valid(xp: Any, coords: Any) -> Any:
    del xp
    return coords[:, 0] != PAD


def check_overflow(count: jax.Array, num_dropped: jax.Array, level: Level) -> None:
    """Raise CapacityError if ``num_dropped``, the rows lost at ``level``, is known and above 0.

    ``count`` is the number of rows that were kept.
    """
    if _compat.is_traced(num_dropped) or not int(num_dropped):
        return
    check_fit(int(count) + int(num_dropped), int(count), level)


def check_fit(needed: int, capacity: int, level: Level, *, at_least: bool = False) -> None:
    """Raise CapacityError if ``needed`` voxels at ``level`` do not fit into ``capacity`` rows.

    With ``at_least``, more than ``needed`` voxels may turn out to be needed.
    """
    if needed <= capacity:
        return
    fix = f"give capacity={bucket_capacity(needed)} (vx.bucket_capacity({needed})) or more"
    if needed > _limits.ROWS.most:
        fix = "no capacity holds so many, so take fewer sites for each voxel"
    raise CapacityError(
        f"{'at least ' if at_least else ''}{needed} voxels at the level of stride {level} do not "
        f"fit into capacity {capacity}: {fix}"
    )


@dataclasses.dataclass(frozen=True)
class MapRecord:
    """A static, picklable description of one kernel map of a plan.

    Attributes:
      in_level, out_level: levels of the input and output voxels; 0 is the network's input.
      spec: the kernel's taps and stride.
      views: names of the arrays that the plan builds for the map, sorted.
    """

    in_level: int
    spec: KernelSpec
    out_level: int
    views: tuple[str, ...]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("levels", "views"), meta_fields=("records",)
)
@dataclasses.dataclass(frozen=True, eq=False)
class AttachedMaps:
    """All kernel maps of a plan, built for one input, and the coordinates of its levels.

    Attributes:
      levels: geometries of level 1, 2, ... Level 0 is the input, which has these maps attached.
      views: for each record, the arrays of the map in the order of ``record.views``.
      records: for each map, its levels, its spec and the names of its arrays; static.
    """

    levels: tuple[VoxelGeometry, ...]
    views: tuple[tuple[jax.Array, ...], ...]
    records: tuple[MapRecord, ...]
    # By level: coords, stride and batch size of the voxels that the maps belong to.
    _owners: dict[int, tuple[Any, ...]] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owners": {}}  # owners are set anew after unpickling

    def belong_to(self, geometry: VoxelGeometry) -> bool:
        """Return whether these maps belong to the voxels of ``geometry``.

        The first geometry that is passed for a level becomes the owner of its maps, and the result
        is True. Later geometries of the level must have the coords array, stride and batch size of
        the owner. If the result is True, NumPy arrays of coordinates and maps become read-only.
        """
        mine = geometry.coords, geometry.stride, geometry.batch_size
        coords, *facts = self._owners.setdefault(geometry.level, mine)
        if coords is not geometry.coords or tuple(facts) != mine[1:]:
            return False
        if isinstance(coords, np.ndarray) and coords.flags.writeable:
            for array in (coords, *jax.tree.leaves(self)):
                if isinstance(array, np.ndarray):
                    array.flags.writeable = False
        return True

    def same_as(self, other: AttachedMaps | None) -> bool:
        """Return whether both are the maps of one plan for one input."""
        if self is other or other is None:
            return self is other
        ours, theirs = jax.tree.leaves(self), jax.tree.leaves(other)
        return (self.records, len(ours)) == (other.records, len(theirs)) and all(
            _compat.origin(a) is _compat.origin(b) for a, b in zip(ours, theirs, strict=True)
        )


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("levels", "views", "sources", "halos"),
    meta_fields=("records",),
)
@dataclasses.dataclass(frozen=True, eq=False)
class ShardMaps(AttachedMaps):
    """The kernel maps of one shard of a scene, whose inputs may lie on other shards.

    A transposed map has a record of its own, because it is not made from the forward map.

    Attributes:
      levels: the shard's own voxels at level 1, 2, ...
      sources: for each record, the input voxels of the map, sorted: those of this shard and those
        that it reads from other shards.
      halos: for each record, the exchange that brings features of other shards to this shard.
    """

    sources: tuple[VoxelGeometry, ...] = ()
    halos: tuple[Halo, ...] = ()

    def may_be(self, other: AttachedMaps | None) -> bool:
        """Return whether ``other`` may have the same kernel maps of the same shard.

        Traced arrays have no values to compare. So the answer is True if all arrays of both are
        traced and have the same shapes, and the records are equal. Otherwise it is False.
        """
        if not isinstance(other, ShardMaps) or self.records != other.records:
            return False
        ours, theirs = jax.tree.leaves(self), jax.tree.leaves(other)
        shapes = [[leaf.shape for leaf in leaves] for leaves in (ours, theirs)]
        return shapes[0] == shapes[1] and _compat.is_traced(ours, theirs)
