"""Voxelization and map building in NumPy: no device, no trace, fit for worker processes.

The arrays equal those of the JAX builders (tested); the results are ordinary pytrees
with NumPy leaves that ``jax.jit`` accepts as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from voxax._array_types import Float, Int, Int32, Num
from voxax.coords import COORD_LIMIT, bucket_capacity, host
from voxax.errors import CapacityError, InputError
from voxax.geometry.cells import cells, from_origin, lattice, unresolved
from voxax.geometry.input_checks import (
    batch_indices,
    check_batch_range,
    check_capacity,
    check_finite,
    check_mean_digits,
    check_origin,
    check_voxel_size,
    infer_batch_size,
    raise_unresolved,
)
from voxax.geometry.kernel_maps import TRANSPOSED, View, invert_table, pair_lists
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.lost_rows import Level, LostRows
from voxax.geometry.origin import Origin, relative
from voxax.geometry.voxel_geometry import VoxelGeometry
from voxax.geometry.voxels import Voxels


def voxelize_on_host(
    positions: Float[np.ndarray, "N D"],
    features: Num[np.ndarray, "N C"],
    voxel_size: float | Sequence[float],
    batch_index: Int[np.ndarray, " N"] | None = None,
    *,
    batch_size: int | None = None,
    capacity: int | None = None,
    min_capacity: int = 0,
    origin: Sequence[float] | None = None,
) -> tuple[Voxels, Int32[np.ndarray, " N"]]:
    """Voxelize with the mean in NumPy: arrays in and out, no device.

    For input pipelines: it starts no device and compiles nothing, so worker processes can call it.
    ``jax.jit`` takes the result as it is.

    Args:
      positions: ``float[N, D]``.
      features: ``[N, C]``, floats or integers.
      voxel_size: edge length, a number or one per axis.
      batch_index: ``int[N]`` or None.
      batch_size: number of scenes; None reads it off ``batch_index``.
      capacity: static rows; None buckets the count, or ``min_capacity`` if that is more. For the
        steps of a plan, give its ``attach`` the capacity that its ``capacity(count)`` returns.
      min_capacity: see ``capacity``.
      origin: position of the lattice origin, in float64; None is zero.

    Returns:
      ``(Voxels, inverse int32[N])`` with NumPy leaves.

    Raises:
      InputError: as :func:`voxax.voxelize`.
      CapacityError: the voxels do not fit ``capacity``.

    Examples:
      >>> voxels, inverse = vx.voxelize_on_host(positions, np.ones((500, 1), np.float32), 0.5)
      >>> inverse.shape, inverse.dtype
      ((500,), dtype('int32'))
    """
    if positions.ndim != 2 or not 1 <= positions.shape[1] <= 4:
        raise InputError(f"positions must be float[N, D] with D from 1 to 4, got {positions.shape}")
    if len(features) != len(positions):
        raise InputError(f"{len(features)} features for {len(positions)} positions")
    check_mean_digits(features)
    check_finite(positions)
    size = check_voxel_size(voxel_size, positions.shape[1])
    ndim = positions.shape[1]
    corner = Origin(check_origin((0.0,) * ndim if origin is None else origin, ndim))
    wide = np.float64 if positions.dtype.itemsize > 4 else np.float32
    positions = positions.astype(wide, copy=False)
    if wide is np.float64:
        positions, parts = relative(positions, corner)
    else:
        parts = corner.parts()
    to = lattice(parts, size, (1,) * ndim, wide)
    local = from_origin(positions, parts)
    vague = unresolved(positions, local, to)
    if vague.any():
        first = int(vague.argmax())
        raise_unresolved(positions[first].tolist(), first, size)
    cell, known = cells(local, to)
    if not known.all():
        raise InputError(
            f"positions reach {np.abs(positions).max()}, outside 2**30 voxels of size {size}: "
            "shift the scene or enlarge voxel_size"
        )
    scenes = batch_indices(batch_index, len(positions), on_host=True)
    if batch_size is None:
        batch_size = infer_batch_size(scenes)
    if len(positions):
        check_batch_range(scenes, batch_size)
    rows = np.empty((len(positions), 1 + ndim), np.int32)
    rows[:, 0], rows[:, 1:] = scenes, cell
    coords, inverse = host.unique_rows(rows)
    count = len(coords)
    if capacity is None:
        capacity = bucket_capacity(max(count, min_capacity))
    capacity = check_capacity(capacity)
    if count > capacity:
        raise CapacityError(
            f"{count} voxels do not fit into capacity {capacity}: give "
            f"capacity={bucket_capacity(count)} or more"
        )
    mean = np.zeros((capacity, features.shape[1]), np.float32)
    place = inverse.astype(np.intp)  # once, and not in each sum
    number = np.maximum(np.bincount(place, minlength=count), 1)
    for channel in range(features.shape[1]):
        mean[:count, channel] = np.bincount(place, features[:, channel], count)[:count] / number
    level = (1,) * positions.shape[1]
    geometry = host_geometry(coords, capacity, {level: 0}, level, batch_size)
    return Voxels(geometry, mean, size, corner), inverse  # type: ignore[arg-type]


def host_geometry(
    rows: np.ndarray,
    capacity: int,
    drops: LostRows | dict[Level, int],
    stride: Level,
    batch_size: int,
    level: int = 0,
    level_capacities: tuple[tuple[Level, int], ...] = (),
) -> VoxelGeometry:
    """A VoxelGeometry with NumPy leaves from sorted, distinct rows ``int32[N, 1 + D]``."""
    return VoxelGeometry(
        host.pad_rows(rows, capacity),  # type: ignore[arg-type]
        np.asarray(min(len(rows), capacity), np.int32),  # type: ignore[arg-type]
        drops,  # type: ignore[arg-type]
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
    source: np.ndarray, out: np.ndarray, spec: KernelSpec, out_capacity: int, threads: int = 1
) -> np.ndarray:
    """``int32[out_capacity, K]``: the map's ``neighbors`` view from rows without padding."""
    centers = source if spec.transposed else out
    if max(spec.stride) > 1:
        centers = centers * np.asarray([1, *spec.stride], np.int64)
    among, rows = (out, None) if spec.transposed else (source, out_capacity)
    found = host.find_neighbors(among, centers, spec.dilated_offsets, rows, threads)
    return invert_table(found, out_capacity, threads) if spec.transposed else found


def table_views(
    table: np.ndarray,
    spec: KernelSpec | None,
    names: Collection[str],
    in_capacity: int,
    views: Iterable[View] = (),
    *,
    symmetric: bool = False,
) -> tuple[np.ndarray, ...]:
    """The views called ``names`` of the map with this ``neighbors`` table, in their order.

    Args:
      table: ``int32[out_capacity, K]``.
      spec: the map's relation, or None where it is unknown.
      names: the views that are wanted.
      in_capacity: rows of the input.
      views: what builds those that are not the map's own.
      symmetric: the map is its own adjoint with taps reversed.
    """
    known = {"neighbors": table}
    if any(name.startswith(TRANSPOSED) for name in names):
        backwards = table[:, ::-1] if symmetric else invert_table(table, in_capacity)
        known["transposed_neighbors"] = backwards
    if {"pairs", "pair_starts"} & set(names):
        known["pairs"], known["pair_starts"] = pair_lists(table)
    for view in views:
        if view.name in names:
            known[view.name] = view.on_host(known[view.table], spec)
    return tuple(known[name] for name in names)
