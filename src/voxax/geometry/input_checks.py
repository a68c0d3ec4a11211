"""Checks of user input: each error message names the value, the limit and the fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _limits
from voxax.coords import COORD_LIMIT, PAD
from voxax.errors import InputError, check_whole
from voxax.geometry.call_checks import axes_hint
from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.geometry.eager import as_own_array
from voxax.geometry.row_operations import clear_rows
from voxax.hardware.cpu import check_host_memory


def check_positive(name: str, value: Any) -> None:
    """Raise :class:`InputError` if ``value``, a number, is not above 0. Traced ones are unknown."""
    if not _compat.is_traced(value) and not float(value) > 0:
        raise InputError(f"{name}={float(value)} must be above 0")


def check_voxel_size(voxel_size: float | Sequence[float], ndim: int) -> tuple[float, ...]:
    """Return the voxel size as one edge length per axis, or raise :class:`InputError`.

    Every edge length must be positive, finite and in the range of float32.
    """
    size = _numbers("voxel_size", voxel_size)
    if size.ndim == 0:
        size = np.full(ndim, size)
    if size.shape != (ndim,):
        hint = axes_hint(size.size, ndim)
        raise InputError(f"voxel_size={voxel_size} has {size.size} entries for {ndim} axes{hint}")
    if not (np.isfinite(size).all() and (size > 0).all()):
        raise InputError(
            f"voxel_size={voxel_size} must be positive and finite (an edge length in the unit of "
            "the positions)"
        )
    span = np.finfo(np.float32)
    if size.min() < span.tiny or size.max() > span.max:
        raise InputError(
            f"voxel_size={voxel_size} must lie in {span.tiny:.1e} to {span.max:.1e}, the range of "
            "float32: give positions and voxel size in another unit"
        )
    return tuple(size.tolist())


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        if np.asarray(values).dtype.kind in "SU":
            raise TypeError("text is no number")
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        if _compat.is_traced(values):
            raise  # JAX names the argument that is traced
        raise InputError(f"{name}={values!r:.80} must be a number, or one for each axis") from error


def check_capacity(capacity: Any) -> int:
    """Return ``capacity`` as an integer of at least 1, or raise :class:`InputError`."""
    rows = check_whole("capacity", capacity)
    _limits.ROWS.check("capacity", rows)
    return rows


def check_candidates(operation: str, coords: Any, number: int, peak: int = 0) -> None:
    """Raise :class:`InputError` if there are too many candidate sites, before they take memory.

    Args:
      operation: names the operation in the message.
      coords: ``int32[N, 1 + D]``, the rows that the candidates are made from.
      number: number of candidates for each row.
      peak: if NumPy makes the candidates, the measured peak of its memory, in bytes for each
        coordinate of a candidate; else 0.
    """
    rows, width = coords.shape
    what = f"{operation}: {rows:,} rows x {number:,} sites = {rows * number:,} candidates"
    fix = "take fewer sites for each voxel, or the voxels in parts"
    if rows * number > _MOST_CANDIDATES:
        raise InputError(f"{what} are more than 2**31 - 1, which 32-bit row numbers reach: {fix}")
    check_host_memory(what, peak * width * rows * number, fix)


_MOST_CANDIDATES = 2**31 - 1


def check_origin(origin: Sequence[float], ndim: int) -> tuple[float, ...]:
    """Return the origin as one finite number per axis, or raise :class:`InputError`."""
    corner = _numbers("origin", origin)
    if corner.shape != (ndim,) or not np.isfinite(corner).all():
        hint = axes_hint(corner.size, ndim)
        raise InputError(f"origin={origin} must be {ndim} finite numbers, one for each axis{hint}")
    return tuple(corner.tolist())


def check_coords(
    coords: Any, features: Any, batch_size: int, *, on_host: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Check integer coordinates and features, and return them as ``(int32[N, 1 + D], [N, C])``.

    Values of coordinates are checked unless traced. Wrong input raises :class:`InputError`. With
    ``on_host`` the coordinates become a NumPy array, and the features are returned as they are.
    """
    if not isinstance(coords, jax.Array):
        coords = np.asarray(coords)
    if coords.ndim != 2 or not 2 <= coords.shape[1] <= 5:
        raise InputError(
            f"coords must be int[N, 1 + D]: batch index, then D coordinates, D from 1 to 4; got "
            f"shape {tuple(coords.shape)}"
        )
    if not jnp.issubdtype(coords.dtype, jnp.integer):
        raise InputError(
            f"coords must be integers, got {coords.dtype}; for float positions use vx.voxelize, of "
            "rows x, y, z, intensity vx.voxelize(rows[:, :3], rows[:, 3:], voxel_size)"
        )
    _limits.SCENES.check("batch_size", check_whole("batch_size", batch_size))
    features = features if on_host else as_own_array(features)
    check_feature_rows(features, coords.shape[0], f"{coords.shape[0]} coordinates")
    if not _compat.is_traced(coords):
        check_coord_values(np.asarray(coords), batch_size)
    else:
        # Values beyond 32 bits must not wrap around into the range.
        info = jnp.iinfo(coords.dtype)
        low, high = max(int(info.min), -int(PAD)), min(int(info.max), int(PAD) - 1)
        padding = coords == int(PAD) if int(info.max) >= int(PAD) else False
        coords = jnp.where(padding, coords, jnp.clip(coords, low, high))
    if not on_host:
        return as_own_array(coords).astype(np.int32), features
    return np.asarray(coords, np.int32), features  # type: ignore[return-value]


def check_batch_range(batch_index: Any, batch_size: int) -> None:
    """Raise :class:`InputError` for concrete batch indices outside ``[0, batch_size)``."""
    low, high = int(batch_index.min()), int(batch_index.max())
    if low < 0 or high >= batch_size:
        raise InputError(
            f"batch indices span {low} to {high} but batch_size={batch_size}: give "
            f"batch_size={max(high, 0) + 1} and indices from 0"
        )


def check_coord_values(coords: np.ndarray, batch_size: int) -> None:
    """Raise :class:`InputError` if a row has a wrong batch index or is out of the coordinate range.

    Batch indices must lie in ``[0, batch_size)``. Padding rows are skipped.
    """
    valid = coords[:, 0] != PAD
    rows = coords if valid.all() else coords[valid]
    if not len(rows):
        return
    try:
        check_batch_range(rows[:, 0], batch_size)
    except InputError as error:
        raise InputError(
            f"{error}. Column 0 of coords int{list(coords.shape)} is the batch index: coordinates "
            f"without one, of a single scene, need a column of zeros before them, np.pad(coords, "
            "((0, 0), (1, 0)))"
        ) from None
    low, high = int(rows[:, 1:].min()), int(rows[:, 1:].max())
    if low < -COORD_LIMIT or high >= COORD_LIMIT:
        raise InputError(
            f"coordinates span {low} to {high}, outside [-2**30, 2**30): voxax keys are 32-bit; "
            "shift the scene to its own origin"
        )


def float_positions(positions: Any, *, finite: bool = True, on_host: bool = False) -> Any:
    """Check positions and return ``float[N, D]`` in float32 or wider, or raise :class:`InputError`.

    A NumPy array of float64 stays in NumPy, so that an origin can be subtracted in float64.

    Args:
      positions: ``float[N, D]``, D from 1 to 4.
      finite: True raises for NaN and infinite positions in a NumPy array.
      on_host: True returns a NumPy array for every dtype.
    """
    if on_host and isinstance(positions, jax.Array):
        positions = jax.device_get(positions)
    if not isinstance(positions, jax.Array):
        positions = np.asarray(positions)
        floating = np.issubdtype(positions.dtype, np.floating)
        if finite and floating and len(positions):
            check_finite(positions)
        if floating and positions.dtype.itemsize > 4:
            positions = positions.astype(np.float64)
        elif not on_host:
            positions = as_own_array(positions)
    if positions.ndim != 2 or not 1 <= positions.shape[1] <= 4:
        raise InputError(f"positions must be float[N, D] with D from 1 to 4, got {positions.shape}")
    if not jnp.issubdtype(positions.dtype, jnp.floating):
        raise InputError(
            f"positions must be floating point, got {positions.dtype}; for integer lattice "
            "coordinates use vx.Voxels.from_coords"
        )
    if isinstance(positions, np.ndarray) and not on_host:
        return positions
    # Half precision cannot number the cells of a scan: 11 bits reach 2048.
    wide = accumulator(positions.dtype)
    return positions if positions.dtype == wide else positions.astype(wide)


def raise_unresolved(position: Any, row: int, size: Sequence[float]) -> None:
    """Raise :class:`InputError`, which says that float32 is too coarse at ``position``.

    Neighboring float32 numbers there are more than a quarter of a voxel apart. ``row`` is the row
    of the position, and ``size`` has the edge lengths of a voxel.
    """
    raise InputError(
        f"position {position} at row {row}: float32 numbers there lie more than a quarter of a "
        f"voxel of size {tuple(size)} apart. Give the voxels an origin= near the points, and the "
        "positions as a NumPy array of float64: there the origin is subtracted before they become "
        "float32"
    )


def check_finite(positions: np.ndarray) -> None:
    """Raise :class:`InputError` if a position is NaN or infinite, and name the first bad row."""
    finite = np.isfinite(positions)
    if not finite.all():
        bad = ~finite.all(axis=-1)
        first = int(np.argmax(bad))
        raise InputError(
            f"{int(bad.sum())} of {len(positions)} positions are NaN or infinite, first at row "
            f"{first}: {positions[first].tolist()}; drop them with "
            "positions[np.isfinite(positions).all(1)]"
        )


def batch_indices(batch_index: Any, rows: int, *, on_host: bool = False) -> jax.Array:
    """Check batch indices and return them as ``int32[rows]``; None gives zeros.

    Wrong input raises :class:`InputError`. With ``on_host`` the result is a NumPy array.
    """
    if batch_index is None:
        return (np if on_host else jnp).zeros((rows,), np.int32)  # type: ignore[return-value]
    batch_index = (np.asarray if on_host else as_own_array)(batch_index)
    if batch_index.shape != (rows,) or not jnp.issubdtype(batch_index.dtype, jnp.integer):
        raise InputError(
            f"batch_index must be int[{rows}], one per position, got "
            f"{batch_index.dtype}{list(batch_index.shape)}"
        )
    if batch_index.dtype.itemsize > 4 or batch_index.dtype == np.uint32:
        # Values beyond 32 bits must not wrap around into the range.
        info = jnp.iinfo(np.int32)
        if not _compat.is_traced(batch_index):
            check_scene_numbers(batch_index)
        batch_index = batch_index.clip(max(int(jnp.iinfo(batch_index.dtype).min), -1), info.max)
    return batch_index.astype(jnp.int32)


def check_scene_numbers(batch_index: Any) -> None:
    """Raise :class:`InputError` if a concrete batch index is above the largest supported one."""
    if batch_index.size:
        _limits.SCENES.check("batch_index + 1 =", int(batch_index.max()) + 1, -np.inf)


def infer_batch_size(batch_index: jax.Array) -> int:
    """Return the largest batch index plus one, or 1 if there is none; raise if they are traced."""
    if _compat.is_traced(batch_index):
        raise InputError(
            "batch_size= must be given under jax.jit: the number of scenes is static and cannot "
            "be read off a traced batch_index"
        )
    check_scene_numbers(batch_index)
    return int(batch_index.max(initial=0)) + 1 if batch_index.size else 1


def check_feature_rows(features: Any, rows: int, of: str) -> None:
    """Raise :class:`InputError` unless features are an array of numbers ``[rows, C]``.

    ``of`` says in the message what the rows belong to.
    """
    if not hasattr(features, "ndim"):
        raise InputError(
            f"features of type {type(features).__name__} for {of}: give an array [{rows}, C]"
        )
    if np.dtype(features.dtype).kind in "OSU":
        raise InputError(f"features of dtype {features.dtype} for {of}: give numbers")
    if features.ndim != 2 or features.shape[0] != rows:
        raise InputError(
            f"features of shape {tuple(features.shape)} for {of}: expected [{rows}, C]"
        )


def check_mean_digits(features: Any) -> None:
    """Raise :class:`InputError` for concrete integers so large that their float32 mean is rounded.

    Integers this large are mostly labels, whose mean has no meaning.
    """
    dtype = features.dtype
    if not jnp.issubdtype(dtype, jnp.integer) or _compat.is_traced(features) or not features.size:
        return
    # The mean of 64-bit arrays of JAX is float64.
    if jnp.iinfo(dtype).bits < 32 or (
        jnp.iinfo(dtype).bits == 64 and isinstance(features, jax.Array)
    ):
        return
    low, high = int(features.min()), int(features.max())
    if max(-low, high) > 2**24:
        raise InputError(
            f"the mean of {dtype} features is float32, which holds integers up to 2**24; they span "
            f"{low} to {high}: give reduction='first' (or 'max') for labels, or floats"
        )


def check_sum_range(features: Any, sums_of: Callable[[Any], jax.Array]) -> None:
    """Raise :class:`InputError` if sums of concrete integer features would wrap around.

    Args:
      features: ``[N, C]``; a sum has at most N terms.
      sums_of: function that computes the sums from the features converted to float32.
    """
    dtype = features.dtype
    if jnp.issubdtype(dtype, jnp.inexact) or _compat.is_traced(features) or not features.size:
        return
    most = int(jnp.iinfo(product_dtype(dtype)).max)
    if max(-int(features.min()), int(features.max())) * features.shape[0] <= most:
        return
    largest = float(jnp.max(jnp.abs(sums_of(features.astype(jnp.float32)))))
    if largest > most:
        raise InputError(
            f"sums of {dtype} features reach {largest:.4g}, {product_dtype(dtype)} holds up to "
            f"{most}: give floats, features.astype(float32)"
        )


def padded_features(features: jax.Array, valid: jax.Array, kind: str) -> jax.Array:
    """Check the shape of features and return them with zeros in the padding rows.

    Args:
      features: ``[capacity, C]``.
      valid: ``bool[capacity]``, False in padding rows.
      kind: what the rows are, for the error message, such as "points".

    Raises:
      InputError: ``features`` has another number of rows than ``valid``.
    """
    capacity = valid.shape[0]
    check_feature_rows(features, capacity, f"{kind} of capacity {capacity}")
    return clear_rows(features, valid)
