"""Voxelization and map building in NumPy: no device, no trace, fit for worker processes.

The arrays equal those of the JAX builders (tested); the results are ordinary pytrees
with NumPy leaves that ``jax.jit`` accepts as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxax._native import host as native
from voxax.coords import COORD_LIMIT, bucket_capacity, host
from voxax.errors import CapacityError, InputError
from voxax.geometry.input_checks import check_finite, check_voxel_size
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.tap_order import SIDE_OF_SORTED, bits_of_taps
from voxax.geometry.views import PAIR_ROOM
from voxax.geometry.voxel_geometry import Level, VoxelGeometry
from voxax.geometry.voxels import Voxels
from voxax.geometry.windows import WINDOW_ALIGNMENT, WINDOW_TILE, Columns, columns_of


def voxelize(
    positions: np.ndarray,
    features: np.ndarray,
    voxel_size: float | Sequence[float],
    batch_index: np.ndarray | None = None,
    *,
    batch_size: int | None = None,
    capacity: int | None = None,
    min_capacity: int = 0,
) -> tuple[Voxels, np.ndarray]:
    """``vx.voxelize(..., reduction="mean", return_inverse=True)`` in NumPy.

    Args:
      positions: ``float[N, D]``.
      features: ``float[N, C]``.
      voxel_size: edge length, a number or one per axis.
      batch_index: ``int[N]`` or None.
      batch_size: number of scenes; None reads it off ``batch_index``.
      capacity: static rows; None buckets the count, or ``min_capacity`` if that is more.
      min_capacity: see ``capacity``.

    Returns:
      ``(Voxels, inverse int32[N])`` with NumPy leaves.

    Raises:
      InputError: as :func:`voxax.voxelize`.
      CapacityError: the voxels do not fit ``capacity``.
    """
    if positions.ndim != 2 or not 1 <= positions.shape[1] <= 4:
        raise InputError(f"positions must be float[N, D] with D from 1 to 4, got {positions.shape}")
    if len(features) != len(positions):
        raise InputError(f"{len(features)} features for {len(positions)} positions")
    check_finite(positions)
    size = check_voxel_size(voxel_size, positions.shape[1])
    # float32 like the device path, so that both put a point into the same voxel.
    cell = np.floor(positions.astype(np.float32) / np.asarray(size, np.float32))
    if np.abs(cell).max(initial=0) >= COORD_LIMIT:
        raise InputError(
            f"positions reach {np.abs(positions).max()}, outside 2**30 voxels of size {size}: "
            "shift the scene or enlarge voxel_size"
        )
    scenes = np.zeros(len(positions), np.int32) if batch_index is None else batch_index
    if batch_size is None:
        batch_size = int(scenes.max(initial=0)) + 1
    coords, inverse = host.unique_rows(
        np.concatenate([scenes[:, None], cell], axis=1).astype(np.int32)
    )
    count = len(coords)
    capacity = bucket_capacity(max(count, min_capacity)) if capacity is None else capacity
    if count > capacity:
        raise CapacityError(
            f"{count} voxels do not fit into capacity {capacity}: give "
            f"capacity={bucket_capacity(count)} or more"
        )
    mean = np.zeros((capacity, features.shape[1]), np.float32)
    number = np.maximum(np.bincount(inverse, minlength=count), 1)
    for channel in range(features.shape[1]):
        mean[:count, channel] = np.bincount(inverse, features[:, channel], count)[:count] / number
    level = (1,) * positions.shape[1]
    geometry = host_geometry(coords, capacity, {level: 0}, level, batch_size)
    return Voxels(geometry, mean, size, (0.0,) * len(size)), inverse  # type: ignore[arg-type]


def host_geometry(
    rows: np.ndarray,
    capacity: int,
    drops: dict[Level, int],
    stride: Level,
    batch_size: int,
    level: int = 0,
    level_capacities: tuple[tuple[Level, int], ...] = (),
) -> VoxelGeometry:
    """A VoxelGeometry with NumPy leaves from sorted, distinct rows ``int32[N, 1 + D]``."""
    return VoxelGeometry(
        host.pad_rows(rows, capacity),  # type: ignore[arg-type]
        np.asarray(min(len(rows), capacity), np.int32),  # type: ignore[arg-type]
        {key: np.asarray(n, np.int32) for key, n in drops.items()},  # type: ignore[misc]
        None,
        stride,
        batch_size,
        level,
        level_capacities,
    )


def output_rows(rows: np.ndarray, spec: KernelSpec) -> np.ndarray:
    """Canonical output sites of a strided or generative spec; ``int32[N, 1 + D]`` both.

    Raises:
      InputError: a generative spec reaches beyond the coordinate range.
    """
    if not spec.generative:
        return host.unique_rows(host.coarsen(rows, spec.stride))[0]
    offsets, scale = spec.dilated_offsets, np.asarray(spec.stride, np.int64)
    if spec.transposed:
        sites = rows[:, None, 1:] * scale + offsets
        keep = np.ones(sites.shape[:2], bool)
    else:
        shifted = rows[:, None, 1:] - offsets
        sites = np.floor_divide(shifted, scale)
        keep = (shifted == sites * scale).all(-1)
    if spec.output_shape is not None:
        keep &= ((sites >= 0) & (sites < np.asarray(spec.output_shape))).all(-1)
    outside = keep & ((sites < -COORD_LIMIT) | (sites >= COORD_LIMIT)).any(-1)
    if outside.any():
        raise InputError(
            f"{int(outside.sum())} sites that the map ({spec}) reaches have coordinates outside "
            "[-2**30, 2**30): shift the scene towards its own origin"
        )
    batch = np.broadcast_to(rows[:, None, :1], (*sites.shape[:2], 1))
    return host.unique_rows(np.concatenate([batch, sites], -1)[keep].astype(np.int32))[0]


def neighbor_table(
    source: np.ndarray, out: np.ndarray, spec: KernelSpec, in_capacity: int, out_capacity: int
) -> np.ndarray:
    """``int32[out_capacity, K]``: the map's ``neighbors`` view from rows without padding."""
    centers = source if spec.transposed else out
    if max(spec.stride) > 1:
        centers = centers * np.asarray([1, *spec.stride], np.int64)
    if spec.transposed:
        reached = host.find_neighbors(out, centers, spec.dilated_offsets)
        return invert_table(reached, out_capacity)
    return host.find_neighbors(source, centers, spec.dilated_offsets, out_capacity)


def invert_table(neighbors: np.ndarray, in_capacity: int) -> np.ndarray:
    """``int32[in_capacity, K]``: see :func:`voxax.geometry.views.invert_neighbors`."""
    if native.takes_table(neighbors):
        return native.invert_table(neighbors, in_capacity)
    table = np.full((in_capacity, neighbors.shape[1]), -1, np.int32)
    out, tap = np.nonzero(neighbors >= 0)
    table[neighbors[out, tap], tap] = out
    return table


def pair_lists(neighbors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(pairs, starts)``: see :func:`voxax.geometry.views.list_pairs`."""
    rows, taps = neighbors.shape
    if native.takes_table(neighbors):
        return native.list_pairs(neighbors, rows * taps + PAIR_ROOM)
    tap, out = np.nonzero(neighbors.T >= 0)
    pairs = np.full((2, rows * taps + PAIR_ROOM), -1, np.int32)
    pairs[0, : len(out)] = neighbors[out, tap]
    pairs[1, : len(out)] = out
    counts = np.bincount(tap, minlength=taps)
    return pairs, np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def windows(neighbors: np.ndarray, columns: Columns) -> np.ndarray:
    """``int32[2, tiles, columns]``: see :func:`voxax.geometry.windows.find_windows`."""
    rows, taps = neighbors.shape
    tiles = -(-rows // WINDOW_TILE)
    table = np.full((tiles * WINDOW_TILE, taps), -1, np.int32)
    table[:rows] = neighbors
    table = table.reshape(tiles, WINDOW_TILE, taps)
    first = np.where(table < 0, np.iinfo(np.int32).max, table).min(1, initial=2**31 - 1)
    last = table.max(1, initial=-1)
    low = np.stack([first[:, column].min(1) for column in map(list, columns)], 1)
    high = np.stack([last[:, column].max(1) for column in map(list, columns)], 1)
    start = np.where(high < 0, 0, low - low % WINDOW_ALIGNMENT)
    return np.stack([start, high + 1 - start]).astype(np.int32)


def sort_by_taps(neighbors: np.ndarray) -> np.ndarray:
    """``int32[K + 1, out_capacity]``: see :func:`voxax.geometry.tap_order.sort_by_taps`."""
    bits = bits_of_taps(neighbors.shape[1])
    masks = np.bitwise_or.reduce(np.where(neighbors >= 0, bits, np.uint32(0)), axis=1)
    order = np.argsort(~masks, kind="stable")
    return np.concatenate([neighbors[order].T, order[None, :]]).astype(np.int32)


def table_views(
    table: np.ndarray, spec: KernelSpec, names: Sequence[str], in_capacity: int
) -> tuple[np.ndarray, ...]:
    """The views called ``names`` of the map with this ``neighbors`` table, in their order."""
    known = {"neighbors": table}
    if any(name.startswith("transposed_") for name in names):
        known["transposed_neighbors"] = invert_table(table, in_capacity)
    for name, side in (("windows", "neighbors"), ("transposed_windows", "transposed_neighbors")):
        if name in names:
            known[name] = windows(known[side], columns_of(spec, spec.num_offsets))
    for name, side in SIDE_OF_SORTED.items():
        if name in names:
            known[name] = sort_by_taps(known[side])
    if {"pairs", "pair_starts"} & set(names):
        known["pairs"], known["pair_starts"] = pair_lists(table)
    return tuple(known[name] for name in names)
