"""Voxelize points and build kernel maps in NumPy, for worker processes without a device.

The arrays equal those of the JAX functions. The results are ordinary pytrees with NumPy leaves, and
``jax.jit`` accepts them as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from voxax._array_types import Float, Int, Int32, Num
from voxax.coords import COORD_LIMIT, PAD, bucket_capacity, host
from voxax.errors import CapacityError, InputError
from voxax.geometry.host_merge import reduce_on_host
from voxax.geometry.input_checks import (
    batch_indices,
    check_batch_range,
    check_candidates,
    check_capacity,
    check_mean_digits,
    check_origin,
    check_voxel_size,
    float_positions,
    infer_batch_size,
)
from voxax.geometry.kernel_maps import TRANSPOSED, View, invert_table, pair_lists
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.lost_rows import Level, LostRows
from voxax.geometry.origin import Origin
from voxax.geometry.voxel_geometry import VoxelGeometry
from voxax.geometry.voxels import Voxels, place_points, raise_on_bad_points


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
    """Group points into voxels in NumPy, and average the features of the points in a voxel.

    The function is for input pipelines. It starts no device and compiles nothing, so worker
    processes can call it. ``jax.jit`` takes the result as it is.

    Args:
      positions: ``float[N, D]``, the points.
      features: ``[N, C]``, the features of each point, floats or integers.
      voxel_size: edge length in the unit of the positions, a number or one per axis.
      batch_index: ``int[N]``, the scene of each point; None puts all points in scene 0.
      batch_size: number of scenes; None takes the largest batch index plus one.
      capacity: number of rows of the result. None rounds the number of voxels up to one of a few
        standard sizes. With a plan, give ``plan.attach`` the capacity ``plan.capacity(count)``.
      min_capacity: least number of voxels to make room for if ``capacity`` is None.
      origin: position of the lattice origin, in float64; None is zero.

    Returns:
      ``(Voxels, inverse)`` in NumPy arrays; ``inverse`` is ``int32[N]``, the voxel row of each
      point.

    Raises:
      InputError: as in :func:`voxax.voxelize`.
      CapacityError: the voxels do not fit ``capacity``.

    Examples:
      >>> voxels, inverse = vx.voxelize_on_host(positions, np.ones((500, 1), np.float32), 0.5)
      >>> inverse.shape, inverse.dtype
      ((500,), dtype('int32'))
    """
    wide = np.float64 if positions.dtype.itemsize > 4 else np.float32
    positions = float_positions(positions.astype(wide, copy=False), on_host=True)
    if len(features) != len(positions):
        raise InputError(f"{len(features)} features for {len(positions)} positions")
    check_mean_digits(features)
    ndim = positions.shape[1]
    size = check_voxel_size(voxel_size, ndim)
    corner = Origin(check_origin((0.0,) * ndim if origin is None else origin, ndim))
    positions, cell, known, vague = place_points(positions, corner, (), size, on_host=True)
    raise_on_bad_points(positions, ~known, vague, size)
    scenes = batch_indices(batch_index, len(positions), on_host=True)
    if batch_size is None:
        batch_size = infer_batch_size(scenes)
    if len(positions):
        check_batch_range(scenes, batch_size)
    coords, inverse = host.unique_rows(np.column_stack([scenes, cell]))
    count = len(coords)
    if capacity is None:
        capacity = bucket_capacity(max(count, min_capacity))
    capacity = check_capacity(capacity)
    if count > capacity:
        raise CapacityError(
            f"{count} voxels do not fit into capacity {capacity}: give "
            f"capacity={bucket_capacity(count)} or more"
        )
    if features.dtype.itemsize < 4:
        features = features.astype(np.float32)
    mean = reduce_on_host(features, inverse, capacity, "mean").astype(np.float32, copy=False)
    level = (1,) * ndim
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
    """Make a VoxelGeometry of NumPy arrays from ``rows``, which are padded or cut to ``capacity``.

    ``rows int32[N, 1 + D]`` are sorted and distinct. Rows that are cut are not added to ``drops``.
    The other arguments are the attributes of :class:`VoxelGeometry`.
    """
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
    """Return the output sites ``int32[M, 1 + D]`` of a strided or generative spec, sorted.

    Args:
      rows: ``int32[N, 1 + D]``, the input sites without padding.
      spec: the kernel's taps and stride.

    Raises:
      InputError: a generative spec reaches beyond the coordinate range.
    """
    if not spec.generative:
        return host.unique_rows(host.coarsen(rows, spec.stride))[0]
    sites, outside = reached_sites(rows, spec)
    if outside:
        raise InputError(
            f"{outside} sites that the map ({spec}) reaches have coordinates outside "
            "[-2**30, 2**30): shift the scene towards its own origin"
        )
    return host.unique_rows(sites[sites[:, 0] != PAD])[0]


def reached_sites(coords: np.ndarray, spec: KernelSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return every candidate output site of a generative ``spec``, unsorted and with duplicates.

    ``coords int32[N, 1 + D]`` are the input sites and may contain padding.

    Returns:
      ``(int32[N * K, 1 + D], int32[])`` for N input sites and K taps. The rows are the candidates,
      or padding where a tap reaches no output site. The number counts the sites that were left out
      because they are outside the coordinate range.
    """
    check_candidates(f"the map ({spec})", coords, spec.num_offsets, peak=24)
    offsets, scale = spec.dilated_offsets[None], np.asarray(spec.stride, np.int64)
    valid = coords[:, :1] != PAD
    rows = coords.astype(np.int64)[:, None, 1:]
    if spec.transposed:
        sites = rows * scale + offsets
        keep = np.broadcast_to(valid, sites.shape[:2]).copy()
    else:
        shifted = rows - offsets
        sites = np.floor_divide(shifted, scale)
        keep = valid & np.all(shifted == sites * scale, axis=-1)
    if spec.output_shape is not None:
        keep &= np.all((sites >= 0) & (sites < np.asarray(spec.output_shape)), axis=-1)
    inside = np.all((sites >= -COORD_LIMIT) & (sites < COORD_LIMIT), axis=-1)
    outside = np.count_nonzero(keep & ~inside)
    found = np.full((*sites.shape[:2], coords.shape[1]), PAD, np.int32)
    found[..., :1] = coords[:, None, :1]
    found[..., 1:] = np.where(inside[..., None], sites, 0)
    found[~(keep & inside)] = PAD
    return found.reshape(-1, coords.shape[1]), np.asarray(outside, np.int32)


def neighbor_table(
    source: np.ndarray, out: np.ndarray, spec: KernelSpec, out_capacity: int, threads: int = 1
) -> np.ndarray:
    """Return ``int32[out_capacity, K]``, the input row of each output row under each tap, or -1.

    ``source`` and ``out`` are the input and output sites ``int32[..., 1 + D]`` without padding.
    ``threads`` is the number of CPU threads to use.
    """
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
    """Return arrays derived from the neighbor table of a kernel map, in the order of ``names``.

    Args:
      table: ``int32[out_capacity, K]``, the ``neighbors`` table.
      spec: the taps and stride of the map, or None if they are unknown.
      names: names of the arrays to return.
      in_capacity: number of rows of the input.
      views: recipes of the arrays in ``names`` other than ``neighbors``, its transposed table,
        ``pairs`` and ``pair_starts``.
      symmetric: whether the transposed table is ``table`` with its columns reversed.
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
