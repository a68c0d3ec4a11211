"""Add voxels to a set (dilate, add_sites), or change its lattice (refine, coarsen)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Bool
from voxax.coords import COORD_LIMIT, PAD, host
from voxax.coords import coarsen as coarse_rows
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.eager import in_either
from voxax.geometry.input_checks import check_candidates, check_capacity
from voxax.geometry.kernel_spec import LONGEST_REACH, KernelShape, KernelSpec, per_axis
from voxax.geometry.lost_rows import Level
from voxax.geometry.regroup import (
    gather_rows,
    new_geometry,
    reduce_rows,
    refuse_lost_sites,
    source_rows,
    unique_sites,
)
from voxax.geometry.voxel_geometry import check_fit
from voxax.geometry.voxels import Voxels

Taps = tuple[tuple[int, ...], ...]

CoarseReduction = Literal["mean", "sum", "max", "min"]
COARSE_REDUCTIONS = ("mean", "sum", "max", "min")
# Bytes of memory for each coordinate of a candidate site in NumPy, measured: 14 to 16.
_PEAK = 14


@checked_operator
def dilate(
    voxels: Voxels,
    kernel_size: int | Sequence[int] = 3,
    *,
    kernel_shape: KernelShape = "box",
    dilation: int | Sequence[int] = 1,
    capacity: int | None = None,
) -> Voxels:
    """Add a voxel at every site that a kernel reaches from the existing voxels.

    Args:
      voxels: the input voxels; all are kept, even if the kernel has no center tap.
      kernel_size, kernel_shape, dilation: as in :func:`voxax.nn.functional.spatially_sparse_conv`;
        a tap at ``offset`` reaches ``site - offset * dilation``.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls. Under ``jax.jit`` it takes (number of taps) times the input's capacity, which
        is usually far too much.

    Returns:
      Voxels with the old features, and zeros at the new sites.

    Raises:
      InputError: a kernel argument is wrong, or the sites that all taps reach from all rows are
        more than 2**31 - 1, or than fit into memory on a CPU; in an eager call, a site is out of
        range.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, lost
        sites are counted in ``num_dropped``, those out of range once per voxel and tap.

    Examples:
      >>> int(vx.dilate(voxels, 3).count) > int(voxels.count)
      True
    """
    ndim = voxels.geometry.ndim
    spec = KernelSpec.make(ndim, kernel_size, dilation=dilation, kernel_shape=kernel_shape)
    taps = {tuple(tap) for tap in spec.dilated_offsets.tolist()} - {(0,) * ndim}
    steps = tuple(tuple(-o for o in tap) for tap in sorted(taps))
    return _grown(voxels, steps, None, capacity, f"dilate by {spec}")


@functools.partial(checked_operator, on_whole_arrays=False)
def add_sites(
    voxels: Voxels, offsets: Taps, keep: Bool[Array, "capacity K"], *, capacity: int | None = None
) -> Voxels:
    """Add voxels at chosen offsets from existing voxels.

    Args:
      voxels: the input voxels; all are kept.
      offsets: K tuples of D integers; static.
      keep: ``bool[voxels.capacity, K]``. Where ``keep[row, k]`` is True, a voxel is added at the
        coordinates of this row plus ``offsets[k]``. Values in padding rows are ignored.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and K + 1 times the input's capacity under ``jax.jit``, which always suffices.

    Returns:
      Voxels with the old features, and zeros at the new sites.

    Raises:
      InputError: ``keep`` has another shape or dtype; in an eager call, a site is out of range.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, lost
        sites are counted in ``num_dropped``, those out of range once per row and offset.
    """
    if keep.shape != (voxels.capacity, len(offsets)) or keep.dtype != bool:
        raise InputError(
            f"keep must be bool[{voxels.capacity}, {len(offsets)}], one for each row and offset, "
            f"got {keep.dtype}{list(keep.shape)}"
        )
    return _grown(voxels, offsets, keep, capacity, f"growing by up to {len(offsets)} offsets")


def _grown(
    voxels: Voxels, steps: Taps, keep: jax.Array | None, capacity: int | None, operation: str
) -> Voxels:
    """Return ``voxels`` plus voxels at ``coords[row] + steps[k]`` where ``keep[row, k]`` is True.

    ``steps`` are K offsets, and ``keep`` is ``bool[capacity, K]``, or None to add voxels at all
    offsets of all voxels. New voxels have features of zero. ``capacity`` is as in :func:`dilate`.
    ``operation`` names the operation in error messages.
    """
    source = voxels.geometry
    if keep is None and capacity is not None and not _compat.is_traced(source.count):
        # A sum of two sets in a lattice has at least as many sites as both together, minus one.
        least = int(source.count) and int(source.count) + len(steps)
        check_fit(least, check_capacity(capacity), source.stride, at_least=True)
    sites, lost = _reached(source.coords, ((0,) * source.ndim, *steps), keep, operation)
    refuse_lost_sites(lost, operation)
    found = unique_sites(sites, capacity)
    # The first candidates are the voxels themselves.
    rows = source_rows(_first(found.inverse, voxels.capacity), found.coords.shape[0])
    geometry = new_geometry(found, [source], lost=lost)
    return dataclasses.replace(
        voxels, geometry=geometry, features=gather_rows(voxels.features, rows)
    )


@checked_operator
def refine(
    voxels: Voxels, factor: int | Sequence[int] = 2, *, capacity: int | None = None
) -> Voxels:
    """Split every voxel into ``factor**D`` smaller voxels that have copies of its features.

    Along an axis where ``factor`` divides the stride, the stride is divided. Along other axes, such
    as those of stride 1, the stride stays and ``voxel_size`` is divided. Strides of the result then
    refer to the finer lattice. In both cases ``positions()`` returns the small voxels' centers.

    Args:
      voxels: the input with ``C`` channels.
      factor: an integer, or one per axis.
      capacity: static number of rows of the result. None takes one of a few standard sizes in
        eager calls, and ``factor**D`` times the input's capacity under ``jax.jit``.

    Raises:
      InputError: a factor is below 1, or the small voxels of all rows are more than 2**31 - 1, or
        than fit into memory on a CPU; in an eager call, a result is out of range.
      CapacityError: in an eager call, the result does not fit ``capacity``. Under ``jax.jit``, lost
        voxels are counted in ``num_dropped``.

    Examples:
      >>> int(vx.refine(voxels, 2).count) == 8 * int(voxels.count)
      True
    """
    source = voxels.geometry
    factors = _factors(factor, source.ndim)
    stride, voxel_size = _finer(voxels, factors)
    if capacity is not None and not _compat.is_traced(source.count):
        number = int(source.count) * math.prod(factors)
        check_fit(number, check_capacity(capacity), stride)
    children, lost = _children(source.coords, factors)
    refuse_lost_sites(lost, f"refine by {factors}")
    found = unique_sites(children, capacity)
    rows = _parents(source_rows(found.inverse, found.coords.shape[0]), voxels.capacity)
    geometry = new_geometry(found, [source], stride=stride, lost=lost)
    return Voxels(geometry, gather_rows(voxels.features, rows), voxel_size, voxels.origin)


@checked_operator
def coarsen(
    voxels: Voxels,
    factor: int | Sequence[int] = 2,
    *,
    reduction: CoarseReduction = "mean",
    capacity: int | None = None,
) -> Voxels:
    """Merge every block of ``factor**D`` lattice sites into one voxel of a coarser lattice.

    The new coordinates are ``unique(floor(coords / factor))``, as in a convolution of stride
    ``factor``.

    Args:
      voxels: the input with ``C`` channels.
      factor: an integer, or one per axis.
      reduction: ``"mean"``, ``"sum"``, ``"max"`` or ``"min"`` of the features of existing voxels.
      capacity: static number of rows of the result. None takes the capacity that :func:`voxax.plan`
        chose for the new stride, or without a plan that of the input. Strided convolutions choose
        the same capacity, so their results can be added to this one.

    Raises:
      InputError: a factor is below 1, or the reduction is unknown.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit are counted in ``num_dropped``.

    Examples:
      >>> vx.coarsen(voxels, 2).stride
      (2, 2, 2)
    """
    check_known("reduction", reduction, COARSE_REDUCTIONS)
    source = voxels.geometry
    factors = _factors(factor, source.ndim)
    stride = tuple(s * f for s, f in zip(source.stride, factors, strict=True))
    cells = _parent_cells(source.coords, factors)
    if capacity is None:
        capacity = dict(source.level_capacities).get(stride, source.capacity)
    found = unique_sites(cells, capacity)
    geometry = new_geometry(found, [source], stride=stride)
    features = reduce_rows(voxels.features, found.inverse, found.coords.shape[0], reduction)
    return dataclasses.replace(voxels, geometry=geometry, features=features)


def _factors(factor: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    factors = per_axis(factor, ndim, "factor")
    if max(factors) > LONGEST_REACH:
        raise InputError(f"factor={factors} is limited to 2**28 = {LONGEST_REACH} along every axis")
    return factors


def _finer(voxels: Voxels, factors: tuple[int, ...]) -> tuple[Level, tuple[float, ...]]:
    """Return the stride and voxel size that ``voxels`` have after :func:`refine` by ``factors``."""
    axes = list(zip(voxels.stride, factors, strict=True))
    stride = tuple(s if s % f else s // f for s, f in axes)
    if not any(s % f for s, f in axes):
        return stride, voxels.voxel_size
    size = voxels.voxel_size or (1.0,) * len(factors)
    return stride, tuple(v / f if s % f else v for v, (s, f) in zip(size, axes, strict=True))


@in_either("number")
def _first(xp: Any, values: Any, number: int) -> Any:
    del xp
    return values[:number]


@in_either("factors")
def _parent_cells(xp: Any, coords: Any, factors: tuple[int, ...]) -> Any:
    if xp is jnp:
        return coarse_rows(coords, factors)
    return np.where(coords[:, :1] == PAD, PAD, host.coarsen(coords, factors))


@in_either("steps", "operation")
def _reached(xp: Any, coords: Any, steps: Taps, keep: Any, operation: str) -> tuple[Any, Any]:
    """Return the sites that K ``steps`` reach from each of N voxels; count those out of range.

    The two results are those of :func:`_candidates`. The first step is zero, so it leads to the
    voxels themselves. ``keep bool[N, K - 1]`` selects the sites of the other steps; where it is
    False, the row becomes padding. ``keep=None`` selects all sites. ``operation`` names the
    operation in the error message about too many sites.
    """
    check_candidates(operation, coords, len(steps), _PEAK if xp is np else 0)
    cells = coords[None, :, 1:] + xp.asarray(steps, np.int32)[:, None, :]
    inside = xp.all((cells >= -COORD_LIMIT) & (cells < COORD_LIMIT), axis=-1)
    if keep is None:
        return _candidates(xp, coords, cells, inside)
    chosen = xp.concatenate([xp.ones_like(keep[:, :1]), keep], axis=1).T
    rows, lost = _candidates(xp, coords, cells, inside | ~chosen)
    return xp.where(chosen.reshape(-1)[:, None], rows, PAD), lost


@in_either("factors")
def _children(xp: Any, coords: Any, factors: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the smaller voxels that each voxel is split into, and count those out of range.

    The two results are those of :func:`_candidates`. The smaller voxels are at
    ``coords * factors + step``, where each axis of ``step`` runs from 0 to its factor minus 1.
    """
    check_candidates(f"refine by {factors}", coords, math.prod(factors), _PEAK if xp is np else 0)
    steps = np.indices(factors).reshape(len(factors), -1).T[:, None, :]
    # Parents beyond these bounds are left out before their product could wrap around.
    lowest = -((COORD_LIMIT + steps) // np.asarray(factors))
    highest = (COORD_LIMIT - 1 - steps) // np.asarray(factors)
    parents = coords[None, :, 1:]
    inside = (parents >= lowest.astype(np.int32)) & (parents <= highest.astype(np.int32))
    cells = parents * np.asarray(factors, np.int32)[None, None, :] + steps.astype(np.int32)
    return _candidates(xp, coords, cells, xp.all(inside, axis=-1))


@in_either("number")
def _parents(xp: Any, children: Any, number: int) -> Any:
    """Return the row of the voxel that contains each child, -1 where ``children`` is -1.

    ``children`` are indices, ``int32[...]``; child k of voxel n has index ``k * number + n``, where
    ``number`` is the number of voxels.
    """
    return xp.where(children < 0, np.int32(-1), children % np.int32(number))


def _candidates(xp: Any, coords: Any, cells: Any, inside: Any) -> tuple[Any, Any]:
    """Return coordinate rows of K candidate cells for each of N voxels; count those out of range.

    Args:
      coords: ``int32[N, 1 + D]``, the voxels.
      cells: ``int32[K, N, D]``, the candidate cells.
      inside: ``bool[K, N]``, whether a cell is inside the coordinate range.

    Returns:
      ``(int32[K * N, 1 + D], int32[])``. The rows are padding where the cell is out of range or the
      voxel is padding. The number counts candidate cells of valid voxels that are out of range.
    """
    valid = coords[None, :, 0] != PAD
    scenes = xp.broadcast_to(coords[None, :, :1], (*inside.shape, 1))
    rows = xp.concatenate([scenes, cells], axis=-1)
    rows = xp.where((inside & valid)[..., None], rows, PAD).reshape(-1, coords.shape[1])
    return rows, xp.sum(valid & ~inside, dtype=np.int32)
