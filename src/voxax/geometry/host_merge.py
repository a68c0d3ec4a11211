"""Merge the rows of the same voxel in NumPy, so that eager calls compile nothing for a new length.

The rows and their order equal those of the compiled functions. Sums are accumulated in float64, so
sums and means may differ from those of the compiled functions in the last digits.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np

from voxax._native.eager import threads
from voxax._native.host import empty_array
from voxax.coords import PAD, UniqueRows, host
from voxax.geometry.default_capacity import default_capacity
from voxax.geometry.dtypes import accumulator, fraction_dtype, limits, product_dtype

Reduction = Literal["mean", "sum", "max", "min", "first"]
REDUCTIONS = ("mean", "sum", "max", "min", "first")


def merge_rows(coords: np.ndarray, capacity: int | None) -> UniqueRows:
    """Return the distinct rows of coordinates, as :func:`voxax.coords.unique_rows` does, in NumPy.

    Args:
      coords: ``int32[N, W]``, a batch index and W - 1 coordinates; may contain padding.
      capacity: rows of the result; None takes the default capacity for the number of distinct rows.
    """
    valid = coords[:, 0] != PAD
    whole = bool(valid.all())
    distinct, place = host.unique_rows(coords if whole else coords[valid], threads())
    rows = default_capacity(len(distinct)) if capacity is None else capacity
    if rows < len(distinct):
        place[place >= rows] = -1
    inverse = place
    if not whole:
        inverse = np.full(len(coords), -1, np.int32)
        inverse[valid] = place
    count = min(len(distinct), rows)
    return UniqueRows(
        host.pad_rows(distinct, rows),  # type: ignore[arg-type]
        np.asarray(count, np.int32),  # type: ignore[arg-type]
        np.asarray(len(distinct) - count, np.int32),  # type: ignore[arg-type]
        inverse,  # type: ignore[arg-type]
    )


def reduce_on_host(
    features: np.ndarray, inverse: np.ndarray, capacity: int, reduction: Reduction
) -> np.ndarray:
    """Merge feature rows in NumPy: :func:`voxax.geometry.regroup.reduce_rows` without its checks.

    Args:
      features: ``[N, C]``.
      inverse: ``int32[N]``, the output row of each input row, or -1 for none.
      capacity: number of output rows.
      reduction: how the features of one output row merge.

    Returns:
      ``[capacity, C]``; output rows without an input row are zero.
    """
    dtype = features.dtype
    if reduction in ("max", "min"):
        limits(dtype)  # raises for dtypes without an order
    there = inverse >= 0
    if not there.all():
        features, inverse = features[there], inverse[there]
    place = inverse.astype(np.intp)  # converted once, not for each channel
    first = np.full(capacity, len(features), np.intp)
    if reduction not in ("mean", "sum"):
        np.minimum.at(first, place, np.arange(len(features)))
    touched = first < len(features)
    if reduction == "first":
        out = np.zeros((capacity, features.shape[1]), dtype)
        out[touched] = features[first[touched]]
        return out
    if reduction in ("max", "min"):
        wide, merge = accumulator(dtype), np.maximum if reduction == "max" else np.minimum
        merged = np.zeros((features.shape[1], capacity), wide)
        for channel, row in enumerate(merged):
            values = features[:, channel].astype(wide)
            row[touched] = values[first[touched]]
            merge.at(row, place, values)
        return np.ascontiguousarray(merged.T.astype(dtype))
    to = product_dtype(dtype) if reduction == "sum" else fraction_dtype(dtype)
    number = np.bincount(place, minlength=capacity)
    merged = empty_array((capacity, features.shape[1]), to)
    if np.count_nonzero(number) == len(place):  # no two rows merge
        merged[number == 0] = 0
        merged[place] = features + features.dtype.type(0)  # a sum has no negative zero
        return merged
    number = np.maximum(number, 1)
    for channel, values in enumerate(features.T):
        total = _sums(place, values, capacity)
        merged[:, channel] = total if reduction == "sum" else total / number
    return merged


def _sums(place: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """Return ``[rows]``: for each index r, the sum of ``values [N]`` where ``place [N]`` equals r.

    Sums are float64, or complex128 for complex numbers, or exact int64 for integers.
    """
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        real, imaginary = np.real(values), np.imag(values)
        return _sums(place, real, rows) + 1j * _sums(place, imaginary, rows)
    if jnp.issubdtype(values.dtype, jnp.floating):
        return np.bincount(place, values.astype(np.float64), rows)
    total = np.zeros(rows, np.int64)
    np.add.at(total, place, values.astype(np.int64))
    return total
