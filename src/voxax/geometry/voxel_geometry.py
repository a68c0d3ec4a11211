"""VoxelGeometry: which voxels exist, and the kernel maps that it carries.

Maps that were built ahead of the trace are attached: immutable children of the pytree. Maps that
are built while the geometry is used are remembered in its private :class:`Memo`. Both are data
here; :mod:`voxax.geometry.build` finds or builds a map.
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

from voxax import _compat
from voxax._array_types import Array, Int32
from voxax.coords import PAD, bucket_capacity
from voxax.errors import CapacityError
from voxax.geometry.eager import in_either
from voxax.geometry.halo import Halo
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.lost_rows import Level, LostRows


class Held:
    """An array as a key: itself, and not its values. What has the key keeps the array."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = _compat.origin(array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


class Memo:
    """Values by key, so that each map and view is built once. Not a pytree child.

    A value is computed from the owner's own arrays, at the trace level where those live. It may be
    used wherever the owner may, inside ``scan`` bodies and gradients too, and it dies with the
    owner: no tracer outlives its trace, flattening the owner leaves the memo behind, copies and
    pickles have empty ones, and so has an owner with other arrays.
    """

    __slots__ = ("_owner", "_table")

    def __init__(self) -> None:
        self._owner: tuple[tuple[Any, ...], Hashable] | None = None
        self._table: dict[Hashable, tuple[Any, Snapshot, Any]] = {}

    def __reduce__(self) -> Any:
        return Memo, ()

    def owned_by(self, arrays: tuple[Any, ...], facts: Hashable) -> Memo:
        """This memo if it is new or has this owner, else a new one.

        Args:
          arrays: what the owner is made of; the same objects, not equal ones.
          facts: its static part.
        """
        if self._owner is None:
            self._owner = arrays, facts
            return self
        known, known_facts = self._owner
        same = len(known) == len(arrays) and all(map(operator.is_, known, arrays))
        return self if same and known_facts == facts else Memo().owned_by(arrays, facts)

    def get(self, key: Hashable) -> Any:
        """The value under ``key``, or None where there is none or its arrays were written to."""
        value, snapshot, trace = self._table.get(key, (None, (), None))
        if trace is not None and trace != _compat.current_trace():
            return None
        return value if all(np.array_equal(array, copy) for array, copy in snapshot) else None

    def get_or_build(self, key: Hashable, arrays: Any, build: Callable[[], Any]) -> Any:
        """The value under ``key``, built at the trace level of ``arrays`` if it is new.

        Args:
          key: names the value.
          arrays: every array that ``build`` reads (a pytree). Where they live at different
            trace levels the result belongs to the innermost one and is not remembered. Where JAX
            hides the levels, it is remembered for this trace.
          build: makes the value.
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
        """A memo for the same arrays, with what is known under ``key``."""
        memo = Memo()
        if (known := self._table.get(key)) is not None:
            memo._table[key] = known
        return memo

    def names(self) -> tuple[Hashable, ...]:
        return tuple(self._table)

    def values(self) -> tuple[Any, ...]:
        return tuple(value for value in map(self.get, self._table) if value is not None)


# NumPy arrays, which can be written to, and copies of them.
Snapshot = tuple[tuple[np.ndarray, np.ndarray], ...]


def _snapshot(arrays: Any) -> Snapshot:
    found = (leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, np.ndarray))
    return tuple((array, array.copy()) for array in found if array.flags.writeable)


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class VoxelGeometry:
    """The coordinates of a sparse tensor: canonical order, no duplicates, static capacity.

    Attributes:
      coords: ``int32[capacity, 1 + D]``: batch index, then D lattice coordinates in
        units of this level's own lattice. Rows ``>= count`` hold ``PAD``.
      count: ``int32[]``, number of valid rows.
      drops: rows lost to capacity, by the total stride of the voxels that lost them. It travels
        through every layer, so the last output knows of every loss. A dict ``{stride: int32[]}``
        is converted.
      attached: maps built ahead of time by ``vx.plan`` for these coordinates, or None. Other
        coordinates, stride or batch size in their place drop it, and ``level_capacities``.
      stride: total stride relative to the input voxels, one integer per axis; static.
      batch_size: number of scenes; static.
      level: index of this geometry among those of the plan, 0 without a plan; static.
      level_capacities: ``((stride, capacity), ...)`` by total stride, which strided layers use when
        they are not given one; static.
      split_over: name of the mesh axis that the scene is split over, of which these voxels are one
        shard; None for whole scenes; static. See :mod:`voxax.parallel`.
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
        """Drop maps that were attached to, or remembered of, other voxels."""
        attached = self.attached
        if isinstance(attached, AttachedMaps) and not attached.belong_to(self):
            object.__setattr__(self, "attached", None)
            object.__setattr__(self, "level_capacities", ())  # these were for the same voxels
        # A level that is given its plan keeps its memo: attached maps equal those that are built.
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
        # Integers have no derivative, whatever a transformation adds: maps are built of these.
        coords, count = map(_compat.without_tangent, (coords, count))
        return cls(coords, count, drops, attached, *aux)

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
        return self.drops.number

    @property
    def valid(self) -> jax.Array:
        """``bool[capacity]``: which rows are voxels."""
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
        """Return these coordinates without attached or remembered maps.

        This is what a KernelMap holds: the memo of the geometry it was asked from holds the
        map, and a cycle would keep device memory until Python's next garbage collection.
        """
        return dataclasses.replace(self, attached=None, memo=self.memo.only("valid"))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays that building a map reads."""
        return self.coords, self.count, self.drops

    def with_drops_of(self, other: VoxelGeometry) -> VoxelGeometry:
        """Return these coordinates, which then also report the rows that ``other`` lost."""
        drops = self.drops.joined(other.drops)
        return self if drops is self.drops else dataclasses.replace(self, drops=drops)

    def same_as(self, other: VoxelGeometry) -> bool:
        """Return True if both are known to hold the same voxels.

        Eagerly by their values. In a trace the coordinates must be the same array, handed on by
        nothing but layers that keep them, ``jit``, ``checkpoint``, custom derivatives and loops.
        """
        if self is other or (self.coords is other.coords and self.count is other.count):
            return True
        if self.coords.shape != other.coords.shape or self.stride != other.stride:
            return False
        if self.batch_size != other.batch_size:
            return False
        return _compat.known_equal(self.coords, other.coords)

    def difference(self, other: VoxelGeometry) -> str:
        """Text for a message about voxels that differ though they are printed alike, or empty."""
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
        """Raise on the host when any level lost rows.

        Raises:
          CapacityError: names each level, and how many rows it lost.
          TypeError: called on traced values (inside ``jax.jit``).
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
        count = "traced" if _compat.is_traced(self.count) else int(self.count)
        maps = f", {len(self.attached.records)} maps attached" if self.attached is not None else ""
        part = "" if self.split_over is None else f", one shard along {self.split_over!r}"
        return (
            f"VoxelGeometry({count} of {self.capacity} voxels, {self.ndim}D, "
            f"stride {self.stride}, batch_size {self.batch_size}{maps}{part})"
        )


@in_either()
def _valid(xp: Any, coords: Any) -> Any:
    del xp
    return coords[:, 0] != PAD


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


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("levels", "views"), meta_fields=("records",)
)
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
    # By level, what the voxels are that the maps are of: coords, stride and batch size.
    _owners: dict[int, tuple[Any, ...]] = dataclasses.field(
        default_factory=dict, init=False, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owners": {}}  # an unpickled geometry belongs to it anew

    def belong_to(self, geometry: VoxelGeometry) -> bool:
        """True if ``geometry`` is the first of its level that has these maps, or the same voxels.

        Coordinates and maps can't be written to from then on.
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
        """True if both are the maps of one plan and one input."""
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
    """Maps whose inputs may lie on other shards. Transposed maps are records of their own.

    Attributes:
      levels: the shard's own voxels of level 1, 2, ...
      sources: for each record the extended set, own voxels and halo in canonical order.
      halos: for each record how features come there.
    """

    sources: tuple[VoxelGeometry, ...] = ()
    halos: tuple[Halo, ...] = ()

    def may_be(self, other: AttachedMaps | None) -> bool:
        """True unless these are known to be the maps of another split."""
        if not isinstance(other, ShardMaps) or self.records != other.records:
            return False
        ours, theirs = jax.tree.leaves(self), jax.tree.leaves(other)
        shapes = [[leaf.shape for leaf in leaves] for leaves in (ours, theirs)]
        return shapes[0] == shapes[1] and _compat.is_traced(ours, theirs)
