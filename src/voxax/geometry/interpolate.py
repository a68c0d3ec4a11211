"""Interpolate voxel features at points (devoxelize), and its adjoint (splat).

The weights are those of multilinear interpolation between voxel centers, as in the point-voxel
networks of Liu et al., "Point-Voxel CNN for Efficient 3D Deep Learning", NeurIPS 2019, and Tang et
al., "Searching Efficient 3D Architectures with Sparse Point-Voxel Convolution", ECCV 2020.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Int, Num
from voxax.coords import COORD_LIMIT, PAD, find_neighbors, find_rows, host
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import axes_hint, checked_operator
from voxax.geometry.cells import Lattice, cells, from_origin, lattice, unresolved
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.geometry.eager import as_host_array, in_either, known_on_cpu
from voxax.geometry.halo import refuse_shard
from voxax.geometry.host_merge import reduce_on_host
from voxax.geometry.input_checks import (
    batch_indices,
    check_feature_rows,
    float_positions,
    raise_unresolved,
)
from voxax.geometry.origin import relative
from voxax.geometry.points import Points
from voxax.geometry.regroup import rows_on_host
from voxax.geometry.row_operations import gathered_on_host
from voxax.geometry.voxels import Voxels

Interpolation = Literal["nearest", "trilinear"]
INTERPOLATIONS = ("nearest", "trilinear")


@overload
def devoxelize(
    voxels: Voxels,
    positions: Points,
    batch_index: Int[Array | np.ndarray, " N"] | None = ...,
    *,
    interpolation: Interpolation = ...,
    normalize: bool = ...,
) -> Points: ...


@overload
def devoxelize(
    voxels: Voxels,
    positions: Float[Array | np.ndarray, "N D"],
    batch_index: Int[Array | np.ndarray, " N"] | None = ...,
    *,
    interpolation: Interpolation = ...,
    normalize: bool = ...,
) -> Float[Array, "N C"]: ...


@checked_operator
def devoxelize(
    voxels: Voxels,
    positions: Float[Array | np.ndarray, "N D"] | Points,
    batch_index: Int[Array | np.ndarray, " N"] | None = None,
    *,
    interpolation: Interpolation = "trilinear",
    normalize: bool = False,
) -> Any:
    """Interpolate the features of voxels at the positions of points.

    ``nearest`` reads the voxel that contains the point: the voxel that :func:`voxax.voxelize` and
    striding would put the point into. ``trilinear`` interpolates multilinearly in D dimensions
    between the centers of the ``2**D`` voxels around the point.

    Args:
      voxels: voxels with ``C`` channels. An unset voxel size counts as 1, an unset origin as 0.
      positions: ``float[N, D]``, or a :class:`voxax.Points`, whose padding is ignored. For a NumPy
        array of float64, the origin is subtracted in float64, as in :func:`voxax.voxelize`.
      batch_index: ``int[N]``, the scene of each point; None takes that of the Points, or scene 0.
      interpolation: ``nearest`` or ``trilinear``.
      normalize: True scales the weights of the voxels that exist to a sum of one. If no voxel
        exists, or all weights are zero, the result is zero. False counts a missing voxel as zero.

    Returns:
      ``[N, C]``, or Points with these features if ``positions`` are Points. Features are computed
      in at least float32 and returned in the dtype of the voxels' features. They are zero for
      points that are not finite, whose cell lies outside ``[-2**30, 2**30)``, or whose scene does
      not exist; under ``jax.jit`` also where float32 does not resolve a quarter of a voxel. The
      result is differentiable in the features, and with ``trilinear`` in the positions too.

    Raises:
      InputError: an argument has a wrong rank or dtype, the interpolation is unknown, or
        ``trilinear`` is used for integers. Also, in an eager call, if float32 does not resolve a
        quarter of a voxel at a position: give the voxels an ``origin`` near the points, and the
        positions as a NumPy array of float64.

    Examples:
      >>> vx.devoxelize(voxels, positions.astype(np.float32)).shape
      (500, 4)
    """
    refuse_shard(voxels, "devoxelize()")
    _check_interpolation(interpolation, voxels.features.dtype)
    cloud, to = meet(voxels, positions, batch_index)
    features = _read(voxels.features, voxels.coords, cloud, to, interpolation, normalize)
    return positions.replace_features(features) if isinstance(positions, Points) else features


@checked_operator
def splat(
    positions: Float[Array | np.ndarray, "N D"] | Points,
    features: Num[Array | np.ndarray, "N C"] | None,
    out_voxels: Voxels,
    batch_index: Int[Array | np.ndarray, " N"] | None = None,
    *,
    interpolation: Interpolation = "trilinear",
) -> Voxels:
    """Add the features of points to existing voxels; this is the adjoint of :func:`devoxelize`.

    Each point adds its features to the voxel that contains the point (``nearest``), or to the
    ``2**D`` voxels around the point with the weights of multilinear interpolation (``trilinear``).
    Features for voxels that do not exist are lost.

    Args:
      positions: ``float[N, D]``, or a :class:`voxax.Points`.
      features: ``[N, C]``, the features of each point; None takes the features of the Points.
      out_voxels: the voxels that receive the features; their own features are not read.
      batch_index: as in :func:`devoxelize`.
      interpolation: ``nearest`` or ``trilinear``.

    Returns:
      Voxels at the coordinates of ``out_voxels`` with ``C`` channels in the features' dtype (int32
      for 8- and 16-bit integers). Sums are in at least float32. Under ``jax.jit``, points where
      float32 does not resolve a quarter of a voxel are left out and counted in ``num_dropped``.

    Raises:
      InputError: as in :func:`devoxelize`; also if features are missing or do not have N rows.

    Examples:
      >>> vx.splat(points, None, voxels, interpolation="nearest").num_channels
      4
    """
    if features is None and isinstance(positions, Points):
        features = positions.features
    if features is None:
        raise InputError("splat needs features= [N, C], or Points as positions")
    refuse_shard(out_voxels, "splat()")
    if not isinstance(features, jax.Array):
        features = as_host_array(features)
    _check_interpolation(interpolation, features.dtype)
    cloud, to = meet(out_voxels, positions, batch_index)
    rows = cloud.positions.shape[0]
    check_feature_rows(features, rows, f"{rows} positions")
    summed = _add(features, out_voxels.coords, cloud, to, interpolation)
    geometry = out_voxels.geometry
    if _compat.is_traced(cloud, to):
        lost = jnp.sum(_vague(cloud, to), dtype=jnp.int32)
        geometry = dataclasses.replace(geometry, drops=geometry.drops.add(geometry.stride, lost))
    return dataclasses.replace(out_voxels, geometry=geometry, features=summed)


def _check_interpolation(interpolation: str, dtype: Any) -> None:
    check_known("interpolation", interpolation, INTERPOLATIONS)
    if interpolation == "trilinear" and not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(
            f"trilinear interpolation of {dtype} features: give floating-point features, or "
            "interpolation='nearest'"
        )


@in_either("interpolation", "normalize")
def _read(
    xp: Any,
    features: Any,
    coords: Any,
    cloud: Cloud,
    lattice: Lattice,
    interpolation: str,
    normalize: bool,
) -> Any:
    # Convert before the reads, so that gradients sum over points in the wide dtype.
    wide = _work_dtype(features.dtype, cloud.positions.dtype)
    x = features.astype(wide)
    rows, weights = stencil(coords, cloud, lattice, interpolation, normalize, wide)
    total = xp.zeros((cloud.positions.shape[0], x.shape[1]), wide)
    # Add one tap after the other: all taps together would need 2**D rows for each point.
    for row, weight in zip(rows, weights, strict=True):
        if xp is np:
            found = gathered_on_host(x, row)
        else:
            found = x.at[row].get(mode="fill", fill_value=0)
        total += found if weight is None else found * weight[:, None]
    return xp.where(cloud.valid[:, None], total, xp.zeros((), wide)).astype(features.dtype)


@in_either("interpolation")
def _add(
    xp: Any, features: Any, coords: Any, cloud: Cloud, lattice: Lattice, interpolation: str
) -> Any:
    wide = _work_dtype(features.dtype, cloud.positions.dtype)
    x = xp.where(cloud.valid[:, None], features.astype(wide), xp.zeros((), wide))
    rows, weights = stencil(coords, cloud, lattice, interpolation, False, wide)
    total = xp.zeros((coords.shape[0], x.shape[1]), wide)
    for row, weight in zip(rows, weights, strict=True):
        terms = x if weight is None else x * weight[:, None]
        if xp is np:
            place = np.where(row < len(coords), row, -1)
            total += reduce_on_host(terms, place, len(coords), "sum")
        else:
            total = total.at[row].add(terms, mode="drop")
    return total.astype(product_dtype(features.dtype))


def _work_dtype(features: Any, positions: Any) -> Any:
    """Return the dtype to interpolate in: float32 or wider, or an integer dtype for integers.

    ``features`` and ``positions`` are the dtypes of these arrays.
    """
    wide = accumulator(features)
    if not jnp.issubdtype(wide, jnp.floating):
        return wide
    return max(wide, accumulator(positions), key=lambda dtype: dtype.itemsize)


class Cloud(NamedTuple):
    """N points: positions ``float[N, D]``, scene numbers ``int32[N]``, and a mask ``bool[N]``.

    The mask is False for padding.
    """

    positions: jax.Array
    batch_index: jax.Array
    valid: jax.Array


def meet(voxels: Voxels, positions: Any, batch_index: Any) -> tuple[Cloud, Lattice]:
    """Check points against ``voxels``; return a :class:`Cloud` and the lattice of the voxels.

    Args:
      voxels: the voxels to read or to add to.
      positions: ``float[N, D]``, or a :class:`voxax.Points`.
      batch_index: ``int[N]``, the scene of each point; None takes that of the Points, or scene 0.

    Raises:
      InputError: the number of axes, or the batch size of the Points, differs from that of the
        voxels; or, in an eager call, float32 does not resolve a quarter of a voxel at a position.
    """
    valid, own = None, ()
    if isinstance(positions, Points):
        if positions.batch_size != voxels.batch_size:
            raise InputError(
                f"points of {positions.batch_size} scenes and voxels of {voxels.batch_size}: both "
                "must be of one batch"
            )
        valid, own = positions.valid, positions.origin
        batch_index = positions.batch_index if batch_index is None else batch_index
        positions = positions.positions
    on_host = known_on_cpu(voxels, positions, batch_index, valid)
    xp: Any = np if on_host else jnp
    positions = float_positions(positions, finite=False, on_host=on_host)
    rows, ndim = positions.shape
    if ndim != voxels.geometry.ndim:
        own = voxels.geometry.ndim
        hint = axes_hint(ndim, own) or axes_hint(own, ndim)
        raise InputError(f"{ndim}-D positions and {own}-D voxels{hint}")
    valid = xp.ones((rows,), bool) if valid is None else xp.asarray(valid)
    positions, parts = relative(positions, voxels.origin, own)
    positions = as_host_array(positions) if on_host else jnp.asarray(positions)
    size = voxels.voxel_size or (1.0,) * ndim
    parts = np.asarray(parts) if on_host else parts
    to = lattice(parts, size, voxels.stride, positions.dtype)
    cloud = Cloud(positions, batch_indices(batch_index, rows, on_host=on_host), valid)
    if not _compat.is_traced(cloud, parts):
        vague = np.asarray(_vague(cloud, to))
        if vague.any():
            first = int(vague.argmax())
            raise_unresolved(np.asarray(positions)[first].tolist(), first, size)
    return cloud, to


@in_either()
def _vague(xp: Any, cloud: Cloud, lattice: Lattice) -> Any:
    del xp
    local = from_origin(cloud.positions, lattice.origin)
    return cloud.valid & unresolved(cloud.positions, local, lattice)


def stencil(
    coords: Any,
    cloud: Cloud,
    lattice: Lattice,
    interpolation: str,
    normalize: bool,
    wide: Any,
) -> tuple[list[Any], list[Any]]:
    """Return the rows and the weights of the voxels from which each of N points is interpolated.

    Args:
      coords: ``int32[capacity, 1 + D]``, the voxels in lexicographic order.
      cloud, lattice: the points, and the lattice of the voxels.
      interpolation: ``nearest`` reads the voxel that contains the point; ``trilinear`` reads the
        ``2**D`` voxels around it.
      normalize: whether to scale the weights of existing voxels to a sum of one.
      wide: dtype of the weights.

    Returns:
      Two lists of length 1 (``nearest``) or ``2**D``. An entry of the first is ``int32[N]``, one
      voxel row for each point, or ``capacity`` where the voxel is missing. The entry of the second
      has the weights ``[N]`` of these voxels; it is None for ``nearest``.
    """
    numpy = isinstance(coords, np.ndarray)
    xp: Any = np if numpy else jnp
    known = cloud.valid & xp.all(xp.isfinite(cloud.positions), axis=1)
    local = from_origin(cloud.positions, lattice.origin)
    known &= ~unresolved(cloud.positions, local, lattice)
    local = xp.where(known[:, None], local, xp.zeros((), local.dtype))
    stride = lattice.stride[None, :]
    if interpolation == "nearest":
        # Integer arithmetic, which gives exactly the cells of voxelization followed by striding.
        fine, inside = cells(local, lattice)
        known &= inside
        queries = _rows(xp, cloud.batch_index, xp.floor_divide(fine, stride))
        row = (rows_on_host if numpy else find_rows)(coords, queries)
        return [_or_beyond(xp, xp.where(known, row, -1), coords)], [None]
    cell = local / lattice.size[None, :] / stride.astype(local.dtype) - 0.5
    # A point half a cell below the lowest voxel's center still sees that voxel.
    known = known & xp.all((cell >= -COORD_LIMIT - 1) & (cell < COORD_LIMIT), axis=1)
    cell = xp.where(known[:, None], cell, 0)
    base = xp.floor(cell)
    queries = _rows(xp, cloud.batch_index, base.astype(np.int32))
    taps = list(itertools.product((0, 1), repeat=coords.shape[1] - 1))
    find = _neighbors_on_host if numpy else find_neighbors
    neighbors = find(coords, queries, known, np.asarray(taps))
    fraction = (cell - base).astype(wide)
    weights = xp.stack([_weight(xp, fraction, tap) for tap in taps], axis=1)
    if normalize:
        weights = _to_one(xp, weights, neighbors >= 0)
    rows = _or_beyond(xp, neighbors, coords)
    return [rows[:, k] for k in range(len(taps))], [weights[:, k] for k in range(len(taps))]


def _neighbors_on_host(
    coords: np.ndarray, queries: np.ndarray, known: np.ndarray, taps: np.ndarray
) -> np.ndarray:
    rows = np.full((len(queries), len(taps)), -1, np.int32)
    table = coords[: np.count_nonzero(coords[:, 0] != PAD)]
    rows[known] = host.find_neighbors(table, queries[known], taps)
    return rows


def _rows(xp: Any, batch_index: Any, cells: Any) -> Any:
    return xp.concatenate([batch_index[:, None], cells], axis=1)


def _or_beyond(xp: Any, row: Any, coords: Any) -> Any:
    # A negative index would count from the end.
    return xp.where(row < 0, coords.shape[0], row)


def _weight(xp: Any, fraction: Any, tap: tuple[int, ...]) -> Any:
    weight = xp.ones(fraction.shape[:1], fraction.dtype)
    for axis, upper in enumerate(tap):
        weight = weight * (fraction[:, axis] if upper else 1 - fraction[:, axis])
    return weight


def _to_one(xp: Any, weights: Any, exists: Any) -> Any:
    """Scale ``weights [N, K]`` of K voxels per point so that each row has a sum of one.

    Before that, weights of missing voxels, where ``exists [N, K]`` is False, become zero. If the
    largest weight of a row is about zero, the whole row of the result is zero.
    """
    weights = xp.where(exists, weights, xp.zeros((), weights.dtype))
    # Divide by the largest weight first. The sum is then at least one, so powers of its inverse in
    # first and second derivatives cannot overflow.
    largest = xp.max(weights, axis=1, keepdims=True)
    largest = largest if xp is np else jax.lax.stop_gradient(largest)
    some = largest > np.sqrt(jnp.finfo(weights.dtype).tiny)
    scaled = xp.where(some, weights / xp.where(some, largest, 1), 0)
    total = xp.where(some, xp.sum(scaled, axis=1, keepdims=True), 1)
    return scaled / total
