"""Kernel maps as PyTorch operators: coordinates in, tables out, all of static shapes."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, and not there where types are checked.

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from voxax.coords import bucket_capacity
from voxax.geometry import PAIR_ROOM, KernelMap, VoxelGeometry, kernel_map_of
from voxax.geometry.build import check_overflow, output_geometry
from voxax.geometry.tap_order import SIDE_OF_SORTED
from voxax.geometry.windows import WINDOW_TILE, columns_of
from voxax.nn.functional.pooling import extreme_rows
from voxax.torch.bridge import call, to_jax, to_torch
from voxax.torch.static_text import read_spec


def _geometry(coords: jax.Array, stride: tuple[int, ...]) -> VoxelGeometry:
    """Rows in canonical order. ``batch_size`` has no part in a map."""
    count = jnp.sum(coords[:, 0] != jnp.iinfo(jnp.int32).max, dtype=jnp.int32)
    return VoxelGeometry(coords, count, {}, None, stride, 1)


@functools.lru_cache(maxsize=4096)
def _neighbors_program(text: str, same: bool) -> Any:
    spec = read_spec(text).relation
    ones = (1,) * spec.ndim
    fine, coarse = (spec.stride, ones) if spec.transposed else (ones, spec.stride)

    def table(source: jax.Array, out: jax.Array) -> jax.Array:
        geometry = _geometry(source, fine)
        target = geometry if same else _geometry(out, coarse)
        return kernel_map_of(geometry, spec, target).neighbors

    return jax.jit(table)


@torch.library.custom_op(
    "voxax::neighbors",
    mutates_args=(),
    schema="(Tensor source, Tensor out, str spec, bool same) -> Tensor",
)
def neighbors(source: torch.Tensor, out: torch.Tensor, spec: str, same: bool) -> torch.Tensor:
    """``int32[out_capacity, K]`` from the coordinates of both sides; ``same``: they are one."""
    return call(_neighbors_program(spec, same), source, out)


@neighbors.register_fake
def _neighbors_shape(
    source: torch.Tensor, out: torch.Tensor, spec: str, same: bool
) -> torch.Tensor:
    return out.new_empty((out.shape[0], read_spec(spec).num_offsets))


@functools.lru_cache(maxsize=4096)
def _outputs_program(text: str) -> Any:
    spec = read_spec(text)
    stride = spec.stride if spec.transposed else (1,) * spec.ndim

    def outputs(coords: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        out = output_geometry(_geometry(coords, stride), spec, capacity)
        return out.coords, out.count, out.num_dropped

    return jax.jit(outputs, static_argnames="capacity")


@torch.library.custom_op(
    "voxax::output_coords",
    mutates_args=(),
    schema="(Tensor coords, str spec, SymInt capacity) -> Tensor",
)
def output_coords(coords: torch.Tensor, spec: str, capacity: int) -> torch.Tensor:
    """``int32[capacity, 1 + D]``: the voxels that a strided or generative spec leads to.

    Raises:
      CapacityError: there are more, also inside a compiled program.
    """
    out, count, dropped = _outputs_program(spec)(to_jax(coords), capacity=capacity)
    check_overflow(count, dropped, read_spec(spec).stride)
    return to_torch(out)


@output_coords.register_fake
def _output_coords_shape(coords: torch.Tensor, spec: str, capacity: int) -> torch.Tensor:
    return coords.new_empty((capacity, coords.shape[1]))


def output_bucket(coords: torch.Tensor, spec: str) -> int:
    """The bucketed number of output voxels. Depends on data: not inside a compiled program."""
    rows = coords.shape[0] * (read_spec(spec).num_offsets if read_spec(spec).generative else 1)
    _, count, _ = _outputs_program(spec)(to_jax(coords), capacity=rows)
    return bucket_capacity(int(count))


@functools.lru_cache(maxsize=4096)
def _view_program(text: str, name: str, same: bool) -> Any:
    spec = read_spec(text)
    ones = (1,) * spec.ndim

    def view(table: jax.Array, in_rows: int) -> jax.Array:
        def stand_in(rows: int) -> VoxelGeometry:
            coords: Any = jax.ShapeDtypeStruct((rows, 1 + spec.ndim), jnp.int32)
            return VoxelGeometry(coords, coords, {}, None, ones, 1)

        source = stand_in(in_rows)
        out = source if same else stand_in(table.shape[0])
        return KernelMap(source, out, spec, {"neighbors": table}).view(name)

    return jax.jit(view, static_argnames="in_rows")


@torch.library.custom_op(
    "voxax::map_view",
    mutates_args=(),
    schema="(Tensor neighbors, str name, str spec, bool same, SymInt in_rows) -> Tensor",
)
def map_view(
    neighbors: torch.Tensor, name: str, spec: str, same: bool, in_rows: int
) -> torch.Tensor:
    """An array that is derived from the table; see ``voxax.geometry.views``."""
    return call(_view_program(spec, name, same), neighbors, in_rows=in_rows)


@map_view.register_fake
def _map_view_shape(
    neighbors: torch.Tensor, name: str, spec: str, same: bool, in_rows: int
) -> torch.Tensor:
    rows, taps = neighbors.shape
    if name == "transposed_neighbors":
        return neighbors.new_empty((in_rows, taps))
    if name == "pairs":
        return neighbors.new_empty((2, rows * taps + PAIR_ROOM))
    if name == "pair_starts":
        return neighbors.new_empty((taps + 1,))
    if name in SIDE_OF_SORTED:
        return neighbors.new_empty((taps + 1, rows if name == "sorted_neighbors" else in_rows))
    side = rows if name == "windows" else in_rows
    # The spec's own number: that of the table may be a symbol.
    columns = len(columns_of(read_spec(spec), read_spec(spec).num_offsets))
    return neighbors.new_empty((2, (side + WINDOW_TILE - 1) // WINDOW_TILE, columns))


@torch.library.custom_op(
    "voxax::extreme_rows",
    mutates_args=(),
    schema="(Tensor features, Tensor neighbors, bool largest) -> Tensor",
)
def window_extremes(features: torch.Tensor, neighbors: torch.Tensor, largest: bool) -> torch.Tensor:
    """``int32[M, C]``: the input row of each window's largest or smallest value, or -1."""
    return call(extreme_rows, features, neighbors, largest=largest)


@window_extremes.register_fake
def _window_extremes_shape(
    features: torch.Tensor, neighbors: torch.Tensor, largest: bool
) -> torch.Tensor:
    return neighbors.new_empty((neighbors.shape[0], features.shape[1]))
