"""Kernel maps: the relation between input and output voxels, and arrays derived from it.

A :class:`KernelMap` stores or builds the tables ``neighbors`` and ``transposed_neighbors`` and the
lists ``pairs`` and ``pair_starts``. Other arrays are specific to a convolution kernel, which passes
a :class:`View` that builds its array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native import host as native
from voxax._native.eager import threads
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords import coarsen, find_neighbors, is_valid
from voxax.coords.coarse import place_in_cell
from voxax.coords.tile_lookup import find_numbers
from voxax.errors import InputError
from voxax.geometry.dtypes import clip_integers
from voxax.geometry.eager import eagerly
from voxax.geometry.halo import Halo
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.nested_sizes import hard_mask
from voxax.geometry.voxel_geometry import Memo, VoxelGeometry

TRANSPOSED = "transposed_"
_BACK = TRANSPOSED + "neighbors"
_CELLS = "cells"  # what a map remembers of itself, see note_cells


def opposite(name: str) -> str:
    """Return the name that an array gets in the transposed map: add or remove ``transposed_``."""
    return name.removeprefix(TRANSPOSED) if name.startswith(TRANSPOSED) else TRANSPOSED + name


@dataclasses.dataclass(frozen=True)
class View:
    """A recipe for an array that is derived from the neighbor table of a kernel map.

    Two views with the same name are equal.

    Attributes:
      name: name of the array. If it begins with ``transposed_``, the array is derived from the
        table ``transposed_neighbors``, else from ``neighbors``.
      build: JAX function that takes the table ``int32[rows, K]`` and the map's spec (or None) and
        returns the array.
      on_host: the same function in NumPy, for plans that are made without a device.
    """

    name: str
    build: Callable[[jax.Array, KernelSpec | None], jax.Array] = dataclasses.field(compare=False)
    on_host: Callable[[np.ndarray, KernelSpec | None], np.ndarray] = dataclasses.field(
        compare=False
    )

    @property
    def table(self) -> str:
        """The name of the table that the view is derived from."""
        return TRANSPOSED + "neighbors" if self.name.startswith(TRANSPOSED) else "neighbors"

    @property
    def opposite(self) -> View:
        """The view of the same array in the transposed map; only the name differs."""
        return dataclasses.replace(self, name=opposite(self.name))


def by_name(*views: View) -> dict[str, View]:
    """Return a dictionary of the given views and of each :attr:`View.opposite`, by their names."""
    return {one.name: one for view in views for one in (view, view.opposite)}


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class KernelMap:
    """A table of the input row that each output row of a convolution reads per kernel offset.

    Algorithms read *views* of the map: the table ``neighbors``, which always exists, and arrays
    derived from it, which are built at their first use and remembered.

    A table that you make yourself must follow two rules, because gradients read it backwards. Each
    entry is -1 or an input row. No input row occurs twice in a column, which belongs to one kernel
    offset. Concrete arrays are checked. Traced arrays cannot be checked: an invalid entry counts as
    -1, and if an input row occurs twice in a column, its gradient has only one of the two terms.

    Attributes:
      in_geometry: coordinates of the input voxels, without attached maps. For one shard of a scene
        they include the voxels that the shard needs from other shards.
      out_geometry: coordinates of the output voxels, without attached maps.
      spec: the kernel's taps and stride; static.
      views: the arrays that existed when the map was made, by name.
      restricted: whether pairs of input and output rows were removed; see :meth:`restrict`.
      halo: for one shard of a scene, the exchange that brings features of input rows from other
        shards. None if a layer's input has the features of all input rows.
      memo: cache of the views that were built after the map was made.
      check: whether to check the tables when the map is made. The check copies them to the host.

    Raises:
      InputError: ``check`` is True, and a table has another shape or dtype, an entry that is
        neither -1 nor a row, or two outputs that share an input under one tap.
    """

    in_geometry: VoxelGeometry
    out_geometry: VoxelGeometry
    spec: KernelSpec
    views: dict[str, jax.Array]
    restricted: bool = False
    halo: Halo | None = None
    memo: Memo = dataclasses.field(default_factory=Memo, repr=False)
    check: dataclasses.InitVar[bool] = True

    def __post_init__(self, check: bool) -> None:
        if check:
            for name, rows in (("neighbors", self.in_capacity), (_BACK, self.out_capacity)):
                if name in self.views:
                    shape = self.in_capacity + self.out_capacity - rows, self.num_offsets
                    table = _checked(name, self.views[name], shape, rows)
                    object.__setattr__(self, "views", {**self.views, name: table})
        self._own()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._own()

    def _own(self) -> None:
        """Replace ``memo``, the cache of derived tables, by an empty one if it is for another map.

        That is, if it was filled for other arrays or static values.
        """
        arrays = self.in_geometry, self.out_geometry, *self.views.values()
        memo = self.memo.owned_by(arrays, (self.spec, self.restricted, *self.views))
        object.__setattr__(self, "memo", memo)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        same = self.in_geometry is self.out_geometry
        names = tuple(sorted(self.views))
        key = jax.tree_util.GetAttrKey
        children = (
            (key("in_geometry"), self.in_geometry),
            (key("out_geometry"), None if same else self.out_geometry),
            (key("views"), tuple(self.views[name] for name in names)),
            (key("halo"), self.halo),
        )
        return children, (self.spec, names, same, self.restricted)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> KernelMap:
        spec, names, same, restricted = aux
        in_geometry, out_geometry, views, halo = children
        views = map(_compat.without_tangent, views) if isinstance(views, tuple) else ()
        by_name = dict(zip(names, views, strict=False))
        out = in_geometry if same else out_geometry
        return cls(in_geometry, out, spec, by_name, restricted, halo, check=False)

    @property
    def symmetric(self) -> bool:
        """True if ``neighbors`` with reversed columns is the table of the transposed map.

        This holds if inputs and outputs are the same voxels and the kernel offsets are symmetric
        about zero. It does not hold for a restricted map, which may contain a pair of rows but not
        its mirror image.
        """
        same = self.in_geometry is self.out_geometry and not self.restricted
        return same and self.spec.keeps_coords and self.spec.symmetric

    @property
    def num_offsets(self) -> int:
        """K, the number of taps."""
        return self.spec.num_offsets

    @property
    def in_capacity(self) -> int:
        """Number of input rows, which entries of ``neighbors`` refer to; static."""
        return self.in_geometry.capacity

    @property
    def feature_rows(self) -> int:
        """Number of rows of a layer's input features; for one shard, only its own rows."""
        return self.in_capacity if self.halo is None else self.halo.own_capacity

    def with_halo(self, features: jax.Array) -> tuple[jax.Array, KernelMap]:
        """Return the features ``[in_capacity, ...]`` of all input rows, and a map without halo.

        Every layer calls this method before it reads features. On one shard of a scene it exchanges
        ``features`` with the other shards. Otherwise it returns the features and the map unchanged.
        """
        if self.halo is None:
            return features, self
        # With the same memo: a view is built once for all layers that share the map.
        return self.halo.extend(features), dataclasses.replace(self, halo=None, check=False)

    @property
    def out_capacity(self) -> int:
        """Number of output rows; static."""
        return self.out_geometry.capacity

    @property
    def neighbors(self) -> jax.Array:
        """``int32[out_capacity, K]``: the input row of each output row under each tap, or -1."""
        return self.view("neighbors")

    def view(self, name: str, view: View | None = None) -> jax.Array:
        """Return the array called ``name``. It is built at its first use and remembered.

        Args:
          name: name of an array in ``views``; or ``transposed_neighbors int32[in_capacity, K]``,
            the output row that reads each input row under each kernel offset, or -1; or ``pairs``
            or ``pair_starts``, see :func:`list_pairs`.
          view: the recipe of the array; needed for all other names.

        Raises:
          KeyError: ``view`` is None and no array has this name; the message lists the known names.
        """
        if name in self.views:
            return self.views[name]
        own: dict[str, Callable[[], jax.Array]] = {
            "transposed_neighbors": self._transposed_neighbors,
            "pairs": lambda: self._pair_lists()[0],
            "pair_starts": lambda: self._pair_lists()[1],
        }
        if name in own:
            return self.memo.get_or_build(name, self.views, own[name])
        if view is None:
            raise KeyError(f"no view {name!r}; known views: {sorted({*own, *self.views})}")
        table = functools.partial(self.view, view.table)
        return self.memo.get_or_build(view, self.views, lambda: view.build(table(), self.spec))

    def _transposed_neighbors(self) -> jax.Array:
        if self.symmetric:
            return self.neighbors[:, ::-1]
        if self.memo.get(_CELLS) is None:
            return invert_neighbors(self.neighbors, self.in_capacity)
        cells, rows = self.out_geometry.coords, self.in_geometry.coords
        return _cells_of_taps(self.neighbors, rows, cells, stride=self.spec.stride)[0]

    def _pair_lists(self) -> tuple[jax.Array, jax.Array]:
        """Return the views ``pairs`` and ``pair_starts``, the results of :func:`list_pairs`."""
        neighbors = self.neighbors
        build = functools.partial(list_pairs, neighbors)
        return self.memo.get_or_build(("pair_lists",), neighbors, build)

    def transpose(self) -> KernelMap:
        """Return the map of the transposed convolution, with inputs and outputs exchanged.

        Raises:
          InputError: the map belongs to one shard of a scene; the plan has its transposed map.
        """
        if self.halo is not None:
            raise InputError(
                f"transpose() of {self!r}, a map of one shard of a scene: inputs of other shards "
                "have no row here. Ask for the transposed map with out_voxels="
            )
        pairs = "pairs", "pair_starts"
        swapped = {opposite(n): array for n, array in self.views.items() if n not in pairs}
        swapped["neighbors"] = self.view("transposed_neighbors")
        if all(name in self.views for name in pairs):
            swapped["pairs"] = self.views["pairs"][::-1]
            swapped["pair_starts"] = self.views["pair_starts"]
        adjoint = self.spec.adjoint()
        ends = self.out_geometry, self.in_geometry
        return KernelMap(*ends, adjoint, swapped, self.restricted, check=False)

    def restrict(self, keep: jax.Array) -> KernelMap:
        """Return the map without the table entries where ``keep`` is False.

        Algorithms skip these entries in the forward pass and in the gradients of features and
        weights.

        Args:
          keep: ``bool[out_capacity, K]``, for each output row and kernel offset. An axis of length
            1 is broadcast.

        Raises:
          InputError: ``keep`` has another dtype, or a shape that cannot be broadcast.
        """
        shape = (self.out_capacity, self.num_offsets)
        keep = jnp.asarray(keep)
        fits = keep.ndim == 2 and all(n in (1, m) for n, m in zip(keep.shape, shape, strict=True))
        if not fits or keep.dtype != jnp.bool_:
            raise InputError(
                f"keep of shape {keep.shape}, {keep.dtype}: expected bool[{shape[0]}, {shape[1]}], "
                "one for each output row and tap; an axis may be 1"
            )
        views = {"neighbors": jnp.where(keep, self.neighbors, -1)}
        ends = self.in_geometry, self.out_geometry
        return KernelMap(*ends, self.spec, views, restricted=True, halo=self.halo, check=False)

    def within(self, size: jax.Array) -> KernelMap:
        """Return the map in which the kernel of each output row is cut to a size of its own.

        Size s covers offsets ``-((s - 1) // 2)`` to ``s // 2`` along every axis, before dilation.

        Args:
          size: kernel size of each output row ``[out_capacity]``, or one size ``[]`` for all rows.
            Floats are rounded down. A size below 1 covers no tap.
        """
        size = clip_integers(size)
        if size.shape not in ((), (self.out_capacity,)):
            raise InputError(
                f"size of shape {size.shape}: expected [{self.out_capacity}], one for each output "
                "row, or []"
            )
        mask = hard_mask(jax.lax.stop_gradient(size), self.spec.offsets)
        return self.restrict(mask if size.ndim else mask[None])

    def of_taps(self, taps: Sequence[int]) -> KernelMap:
        """Return the map of a kernel that has only some of the K kernel offsets.

        ``taps`` are their indices: static, distinct and below K.
        """
        # The index is a NumPy array: an attached table may be one too, and no tracer can index it.
        chosen = tuple(int(tap) for tap in taps)
        spec = dataclasses.replace(self.spec, offsets=tuple(self.spec.offsets[k] for k in chosen))
        views = {"neighbors": self.neighbors[:, np.asarray(chosen, np.int32)]}
        ends = self.in_geometry, self.out_geometry
        return KernelMap(*ends, spec, views, self.restricted, self.halo, check=False)

    def __repr__(self) -> str:
        return (
            f"KernelMap({self.spec}: {self.in_capacity} -> {self.out_capacity} rows, "
            f"{self.num_offsets} taps{', restricted' if self.restricted else ''}, "
            f"{'' if self.halo is None else f'one shard along {self.halo.axis!r}, '}"
            f"views {sorted(self.views)})"
        )


def _checked(name: str, table: Any, shape: tuple[int, int], rows: int) -> Any:
    """Check a neighbor table, which must be ``int32`` of ``shape``, and return it.

    The values of a concrete table are checked by :func:`_check_table`. In a traced table, entries
    that are no row below ``rows`` become -1. Other errors raise :class:`InputError`, which names
    the table ``name``.
    """
    if table.shape != shape or table.dtype != np.int32:
        raise InputError(
            f"{name} of shape {list(table.shape)}, {table.dtype}: expected int32{list(shape)}, for "
            "each row and tap a row of the other side or -1"
        )
    if _compat.is_readable(table):
        _check_table(name, np.asarray(table), rows)
        # Copy, so that nobody changes the table after the check.
        return table.copy() if isinstance(table, np.ndarray) else table
    return jnp.where((table >= 0) & (table < rows), table, -1)


def _check_table(name: str, table: np.ndarray, rows: int) -> None:
    """Raise :class:`InputError` unless every entry of ``table`` is -1 or a row below ``rows``.

    A row may occur only once in a column. ``name`` names the table in the message.
    """
    outside = np.argwhere((table < -1) | (table >= rows))
    if len(outside):
        row, tap = outside[0].tolist()
        raise InputError(
            f"{name}[{row}, {tap}] = {table[row, tap]}, and there are {rows} rows: entries are 0 "
            f"to {rows - 1}, or -1 where there is no pair ({len(outside)} entries are neither)"
        )
    for tap, column in enumerate(table.T):
        number = np.bincount(column[column >= 0])
        if number.max(initial=0) > 1:
            shared = int(number.argmax())
            first, second = np.flatnonzero(column == shared)[:2].tolist()
            raise InputError(
                f"{name}: under tap {tap}, rows {first} and {second} both name row {shared}. A tap "
                "leads from a row to one other at most, since gradients read the table backwards: "
                "give the second pair a tap of its own"
            )


def invert_table(neighbors: np.ndarray, in_capacity: int, threads: int = 1) -> np.ndarray:
    """Return the transposed neighbor table: :func:`invert_neighbors` in NumPy.

    ``threads`` is the number of CPU threads for the native library.
    """
    if native.takes_table(neighbors):
        return native.invert_table(neighbors, in_capacity, threads)
    table = np.full((in_capacity, neighbors.shape[1]), -1, np.int32)
    out, tap = np.nonzero(neighbors >= 0)
    table[neighbors[out, tap], tap] = out
    return table


def _invert_on_host(neighbors: np.ndarray, in_capacity: int) -> np.ndarray:
    return invert_table(neighbors, in_capacity, threads())


@eagerly(_invert_on_host, native=True)
@functools.partial(jax.jit, static_argnames="in_capacity")
def invert_neighbors(neighbors: jax.Array, in_capacity: int) -> jax.Array:
    """Return the transposed neighbor table: the output row that reads each input row, per offset.

    Args:
      neighbors: ``int32[out_capacity, K]``, the input row of each output row and tap, or -1. No
        input row occurs twice in a column (``in = out * stride + offset`` determines ``out``).
      in_capacity: number of input rows.

    Returns:
      ``int32[in_capacity, K]``, the output row of each input row and tap, or -1.
    """
    return _invert(neighbors, in_capacity=in_capacity)[0]


def _invert_neighbors(neighbors: jax.Array, in_capacity: int) -> tuple[jax.Array]:
    by_scatter = functools.partial(_invert_by_scatter, in_capacity=in_capacity)
    if not (neighbors.size and in_capacity):
        return (by_scatter(neighbors),)

    # TPUs scatter one row after the other, at 17 cycles per row.
    def by_tiles(neighbors: jax.Array) -> jax.Array:
        return find_numbers(neighbors.T, in_capacity).T

    return (jax.lax.platform_dependent(neighbors, tpu=by_tiles, default=by_scatter),)


def _invert_by_scatter(neighbors: jax.Array, in_capacity: int) -> jax.Array:
    out_capacity, taps = neighbors.shape
    rows = jnp.broadcast_to(jnp.arange(out_capacity, dtype=jnp.int32)[:, None], neighbors.shape)
    tap = jnp.broadcast_to(jnp.arange(taps, dtype=jnp.int32)[None, :], neighbors.shape)
    target = jnp.where(neighbors < 0, in_capacity, neighbors)
    empty = jnp.full((in_capacity, taps), -1, jnp.int32)
    return empty.at[target, tap].set(rows, mode="drop")


def _invert_natively(neighbors: jax.Array, in_capacity: int) -> tuple[jax.Array]:
    shape = jax.ShapeDtypeStruct((in_capacity, neighbors.shape[1]), jnp.int32)
    return (library_call("voxax_invert_table", shape, neighbors),)


_invert = natively_on_cpu("invert_neighbors", _invert_natively, _invert_neighbors)


def note_cells(kernel_map: KernelMap) -> KernelMap:
    """Record in a traced map that every input row has exactly one output row; return the map.

    Call it only for an unrestricted map of a box kernel as large as its stride, so that each output
    voxel covers a separate block of input sites. Programs for TPUs then transpose the table by
    looking up the output voxel of each input row, which is faster than to invert the table. A map
    of concrete arrays is not changed.
    """
    ends = kernel_map.in_geometry.coords, kernel_map.out_geometry.coords
    arrays = *ends, kernel_map.neighbors
    if all(map(_compat.is_traced, arrays)):
        kernel_map.memo.get_or_build(_CELLS, arrays, lambda: _CELLS)
    return kernel_map


def _inverted_by(invert: Callable[..., tuple[jax.Array]]) -> Callable[..., tuple[jax.Array]]:
    def inverted(
        neighbors: jax.Array, rows: jax.Array, cells: jax.Array, stride: tuple[int, ...]
    ) -> tuple[jax.Array]:
        del cells, stride
        return invert(neighbors, in_capacity=rows.shape[0])

    return inverted


def _cells_by_tiles(
    neighbors: jax.Array, rows: jax.Array, cells: jax.Array, stride: tuple[int, ...]
) -> tuple[jax.Array]:
    """Return a tuple of one array, the transposed neighbor table ``int32[N, K]``.

    The map's kernel is as large as its stride: an output is a cell with edges of ``stride`` input
    sites, and each input is in one cell. ``rows int32[N, 1 + D]`` are the coordinates of the
    inputs, ``cells int32[M, 1 + D]`` those of the outputs. One search finds the cell of each input,
    so the table ``neighbors [M, K]`` is not inverted.
    """
    here = np.zeros((1, len(stride)), np.int32)
    # The cells of sorted rows are nearly in lexicographic order, so the search by tiles is fast.
    cell = find_neighbors(cells, coarsen(rows, stride), is_valid(rows), here, ordered=True)
    taps = np.arange(neighbors.shape[1], dtype=np.int32)[None]
    return (jnp.where(place_in_cell(rows, stride)[:, None] == taps, cell, -1),)


_cells_of_taps = natively_on_cpu(
    "cells_of_taps",
    _inverted_by(_invert_natively),
    _inverted_by(_invert_neighbors),
    _cells_by_tiles,
)


PAIR_ROOM = 4096
"""Number of unused places at the end of a pair list: a block this long may start at any pair."""


def pair_lists(neighbors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lists of pairs of a neighbor table: :func:`list_pairs` in NumPy."""
    rows, taps = neighbors.shape
    if native.takes_table(neighbors):
        return native.list_pairs(neighbors, rows * taps + PAIR_ROOM)
    tap, out = np.nonzero(neighbors.T >= 0)
    pairs = np.full((2, rows * taps + PAIR_ROOM), -1, np.int32)
    pairs[0, : len(out)] = neighbors[out, tap]
    pairs[1, : len(out)] = out
    counts = np.bincount(tap, minlength=taps)
    return pairs, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


@eagerly(pair_lists, native=True)
@jax.jit
def list_pairs(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """List the pairs of input and output rows in a neighbor table, sorted by tap, then output row.

    Args:
      neighbors: ``int32[out_capacity, K]``, the input row of each output row and tap, or -1.

    Returns:
      ``pairs int32[2, out_capacity * K + PAIR_ROOM]``: the input rows and the output rows of all
      pairs, then -1. The constant PAIR_ROOM is the least number of unused columns at the end.
      ``starts int32[K + 1]``: the index of each tap's first pair, then the number of all pairs. If
      input and output voxels are in lexicographic order, the input rows of a tap ascend too.
    """
    pairs, starts = _list(neighbors)
    return pairs, starts


def _list_pairs(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, taps = neighbors.shape
    places = rows * taps + PAIR_ROOM
    found = neighbors.T >= 0
    counts = jnp.sum(found, axis=1, dtype=jnp.int32)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])
    rank = jnp.cumsum(found, axis=1, dtype=jnp.int32) - 1
    target = jnp.where(found, starts[:-1, None] + rank, places).reshape(-1)
    out = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32)[None, :], found.shape)
    empty = jnp.full(places, -1, jnp.int32)

    def placed(values: jax.Array) -> jax.Array:
        return empty.at[target].set(values.reshape(-1), mode="drop")

    return jnp.stack([placed(neighbors.T), placed(out)]), starts


def _list_pairs_natively(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, taps = neighbors.shape
    shapes = (2, rows * taps + PAIR_ROOM), (taps + 1,)
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)
    pairs, starts = library_call("voxax_list_pairs", results, neighbors)
    return pairs, starts


_list = natively_on_cpu("list_pairs", _list_pairs_natively, _list_pairs)
