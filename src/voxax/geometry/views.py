"""Arrays that algorithms ask a KernelMap for, each with the function that builds it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.coords.tile_lookup import find_numbers
from voxax.geometry.tap_order import OPPOSITE_SORTED, sort_by_taps
from voxax.geometry.windows import OPPOSITE_WINDOWS, columns_of, find_windows

if TYPE_CHECKING:
    from voxax.geometry.kernel_map import KernelMap


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


def _transposed_neighbors(kernel_map: KernelMap) -> jax.Array:
    neighbors = kernel_map.view("neighbors")
    if kernel_map.symmetric:
        return neighbors[:, ::-1]
    return invert_neighbors(neighbors, kernel_map.in_capacity)


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


def _pair_lists(kernel_map: KernelMap) -> tuple[jax.Array, jax.Array]:
    """Both views come from one pass, which is made once."""
    neighbors = kernel_map.view("neighbors")
    build = functools.partial(list_pairs, neighbors)
    return kernel_map.memo.get_or_build(("pair_lists",), neighbors, build)


def _pairs(kernel_map: KernelMap) -> jax.Array:
    return _pair_lists(kernel_map)[0]


def _pair_starts(kernel_map: KernelMap) -> jax.Array:
    return _pair_lists(kernel_map)[1]


def _windows(kernel_map: KernelMap) -> jax.Array:
    columns = columns_of(kernel_map.spec, kernel_map.num_offsets)
    return find_windows(kernel_map.view("neighbors"), columns)


def _transposed_windows(kernel_map: KernelMap) -> jax.Array:
    columns = columns_of(kernel_map.spec, kernel_map.num_offsets)
    return find_windows(kernel_map.view("transposed_neighbors"), columns)


def _sorted_neighbors(kernel_map: KernelMap) -> jax.Array:
    return sort_by_taps(kernel_map.view("neighbors"))


def _transposed_sorted_neighbors(kernel_map: KernelMap) -> jax.Array:
    return sort_by_taps(kernel_map.view("transposed_neighbors"))


VIEW_BUILDERS: dict[str, Callable[[KernelMap], jax.Array]] = {
    "transposed_neighbors": _transposed_neighbors,
    "pairs": _pairs,
    "pair_starts": _pair_starts,
    "windows": _windows,
    "transposed_windows": _transposed_windows,
    "sorted_neighbors": _sorted_neighbors,
    "transposed_sorted_neighbors": _transposed_sorted_neighbors,
}
"""``transposed_neighbors int32[in_capacity, K]``: the output row that each input row
feeds through each tap, or -1. ``pairs`` and ``pair_starts``: see :func:`list_pairs`.
``windows`` and, of the transposed table, ``transposed_windows``: see
:func:`voxax.geometry.windows.find_windows`. ``sorted_neighbors`` and, of the transposed table,
``transposed_sorted_neighbors``: see :func:`voxax.geometry.tap_order.sort_by_taps`."""

OPPOSITE_VIEWS = {**OPPOSITE_WINDOWS, **OPPOSITE_SORTED}
"""The views of the transposed map that are these views, under their names there."""
