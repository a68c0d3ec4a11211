"""Arrays derived from a kernel map's table: read backwards, as lists of pairs, or by a kernel.

The map itself holds or builds ``neighbors``, ``transposed_neighbors``, ``pairs`` and
``pair_starts``. Every other array belongs to a kernel, which brings a :class:`View` along.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.tile_lookup import find_numbers
from voxax.geometry.kernel_spec import KernelSpec


@functools.partial(jax.jit, static_argnames="in_capacity")
def invert_neighbors(neighbors: jax.Array, in_capacity: int) -> jax.Array:
    """Read a neighbour table backwards.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1. For one tap, no two
        outputs share an input (``in = out * stride + offset`` determines ``out``).
      in_capacity: number of input rows.

    Returns:
      ``int32[in_capacity, K]``, output row or -1.
    """
    return _invert(neighbors, in_capacity=in_capacity)[0]


def _invert_neighbors(neighbors: jax.Array, in_capacity: int) -> tuple[jax.Array]:
    by_scatter = functools.partial(_invert_by_scatter, in_capacity=in_capacity)
    if not (neighbors.size and in_capacity):
        return (by_scatter(neighbors),)

    # TPUs scatter row after row, at 17 cycles each.
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


PAIR_ROOM = 4096
"""Unused places behind the last pair: a block of so many can be read from any position."""


@jax.jit
def list_pairs(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The pairs that exist, tap after tap, within a tap by output row.

    Args:
      neighbors: ``int32[out_capacity, K]``, input row or -1.

    Returns:
      ``pairs int32[2, out_capacity * K + PAIR_ROOM]``: input rows and output rows, -1 behind
      the last pair; ``starts int32[K + 1]``: where each tap's pairs begin, and their number.
      Where the rows of both sides are in canonical order, each tap's input rows ascend too.
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


TRANSPOSED = "transposed_"


def opposite(name: str) -> str:
    """The name that a view of one table, ``transposed_...`` or not, has in the transposed map."""
    return name.removeprefix(TRANSPOSED) if name.startswith(TRANSPOSED) else TRANSPOSED + name


@dataclasses.dataclass(frozen=True)
class View:
    """An array that is derived from a kernel map's table, and what builds it.

    Two views of one name are the same array.

    Attributes:
      name: a view called ``transposed_...`` is derived from the transposed table.
      build: the table ``int32[rows, K]`` and the map's spec (or None) to the array, in JAX.
      on_host: the same in NumPy, for plans that are made without a device.
    """

    name: str
    build: Callable[[jax.Array, KernelSpec | None], jax.Array] = dataclasses.field(compare=False)
    on_host: Callable[[np.ndarray, KernelSpec | None], np.ndarray] = dataclasses.field(
        compare=False
    )

    @property
    def table(self) -> str:
        """The name of the table that it is derived from."""
        return TRANSPOSED + "neighbors" if self.name.startswith(TRANSPOSED) else "neighbors"

    @property
    def opposite(self) -> View:
        """The view of the transposed map that is this view."""
        return dataclasses.replace(self, name=opposite(self.name))


def by_name(*views: View) -> dict[str, View]:
    """These views and their opposites, by name."""
    return {one.name: one for view in views for one in (view, view.opposite)}
