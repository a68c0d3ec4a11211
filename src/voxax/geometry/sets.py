"""Combine sets of voxels: union, intersection, joined channels, features read at other voxels."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _native
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.coords import PAD
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, fraction_dtype, product_dtype, wide_fraction
from voxax.geometry.eager import in_either
from voxax.geometry.halo import refuse_shard
from voxax.geometry.input_checks import check_mean_digits
from voxax.geometry.origin import Origin
from voxax.geometry.regroup import (
    choose_capacity,
    gather_rows,
    joint_capacities,
    kept_rows,
    new_geometry,
    rows_at,
    rows_on_host,
    source_rows,
    sources_on_host,
    stacked,
    unique_sites,
)
from voxax.geometry.voxel_geometry import VoxelGeometry
from voxax.geometry.voxels import Voxels, on_geometry_of

SetReduction = Literal["sum", "mean", "max", "min"]
SET_REDUCTIONS = ("sum", "mean", "max", "min")

Join = Literal["same", "union", "intersection"]
JOINS = ("same", "union", "intersection")

Rows = tuple[jax.Array, ...]


@checked_operator
def union(
    a: Voxels, b: Voxels, *, reduction: SetReduction = "sum", capacity: int | None = None
) -> Voxels:
    """Return the voxels that are in ``a`` or ``b``; features of voxels in both are combined.

    Args:
      a, b: voxels of the same lattice (stride, batch size, voxel size, origin) and number of
        channels.
      reduction: how features combine: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"`` of the
        operands that have the voxel. Half precision is added in float32. Sums of 8- and 16-bit
        integers are int32, and means of integers are float32 (of 64-bit integers, float64).
      capacity: static number of rows of the result. None takes the coordinates of ``a`` as they are
        if those of ``b`` are known to be equal. Otherwise None takes one of a few standard sizes in
        eager calls, and the sum of both capacities under ``jax.jit``.

    Raises:
      InputError: the operands have different lattices or numbers of channels, the reduction is
        unknown, or, in an eager call, a mean needs integers beyond 24 bits.
      CapacityError: in an eager call, the voxels do not fit ``capacity``. Under ``jax.jit``, voxels
        that do not fit are counted in ``num_dropped``.

    Examples:
      >>> upper = vx.crop(voxels, (0, 0, 4), (8, 8, 8))
      >>> int(vx.union(upper, voxels).count) == int(voxels.count)
      True
    """
    return _merged((a, b), "union", reduction, capacity)


@checked_operator
def intersection(
    a: Voxels, b: Voxels, *, reduction: SetReduction = "sum", capacity: int | None = None
) -> Voxels:
    """Return the voxels that are in both ``a`` and ``b``, and combine their features.

    Arguments and errors as in :func:`union`, but if coordinates differ under ``jax.jit``,
    ``capacity=None`` takes the smaller of both capacities.

    Examples:
      >>> upper = vx.crop(voxels, (0, 0, 4), (8, 8, 8))
      >>> int(vx.intersection(upper, voxels).count) == int(upper.count)
      True
    """
    return _merged((a, b), "intersection", reduction, capacity)


@checked_operator
def cat(voxels: Sequence[Voxels], join: Join = "same", *, capacity: int | None = None) -> Voxels:
    """Concatenate the channels of several sets of voxels, as at a U-Net's skip connection.

    Args:
      voxels: one or more operands on the same lattice.
      join: which voxels the result has. ``"same"`` needs operands with the same coordinates and
        keeps them. ``"union"`` keeps every voxel, with zeros for operands that lack the voxel.
        ``"intersection"`` keeps the voxels that all operands have.
      capacity: static number of rows of a union or intersection; see :func:`union`.

    Returns:
      Voxels with the channels of all operands, in order.

    Raises:
      GeometryMismatchError: the join is ``"same"`` and the coordinates differ. If this cannot be
        known under ``jax.jit``, rows that differ become zero and are counted in ``num_dropped``.
      InputError: the list is empty, the join is unknown, the lattices differ, or the join
        ``"same"`` is given a ``capacity``.
      CapacityError: as in :func:`union`.

    Examples:
      >>> vx.cat([voxels, voxels]).num_channels
      8
    """
    check_known("join", join, JOINS)
    if join != "same":
        lattice = same_lattice(voxels, "cat")
        geometry, rows = _joined([v.geometry for v in voxels], join, capacity)
        parts = [gather_rows(v.features, row) for v, row in zip(voxels, rows, strict=True)]
        return Voxels(geometry, stacked(parts, axis=1), *lattice)
    if not voxels:
        raise InputError("cat needs at least one Voxels, got an empty list")
    if capacity is not None:
        raise InputError(
            f"cat with join='same' keeps the voxels, so it takes no capacity (got {capacity}): "
            "leave it out, or choose join='union' or 'intersection'"
        )
    first, *rest = voxels
    joined, parts = first, [first.features]
    for other in rest:
        found, geometry = on_geometry_of(joined, other, "cat")
        joined, parts = dataclasses.replace(first, geometry=geometry), [*parts, found.features]
    if not _can_join(parts):
        return joined.replace_features(stacked(parts, axis=1))
    return dataclasses.replace(joined, features=_cat(*parts, joined.valid)[0])


@checked_operator
def inject(voxels: Voxels, out_voxels: Voxels) -> Voxels:
    """Return the features of ``voxels`` at the coordinates of ``out_voxels``, zero where missing.

    Args:
      voxels: the voxels to read, with ``C`` channels.
      out_voxels: voxels of the same lattice; their features are not used.

    Returns:
      Voxels with ``C`` channels at the coordinates of ``out_voxels``.

    Raises:
      InputError: the lattices differ, or an operand is one shard of a scene.

    Examples:
      >>> upper = vx.crop(voxels, (0, 0, 4), (8, 8, 8))
      >>> int(vx.inject(voxels, upper).count) == int(upper.count)
      True
    """
    for operand in (voxels, out_voxels):
        refuse_shard(operand, "inject()")
    size, origin = same_lattice((voxels, out_voxels), "inject")
    rows = rows_at(voxels.coords, out_voxels.coords)
    geometry = out_voxels.geometry.with_drops_of(voxels.geometry)
    return Voxels(geometry, gather_rows(voxels.features, rows), size, origin)


def _merged(
    voxels: Sequence[Voxels], join: Join, reduction: SetReduction, capacity: int | None
) -> Voxels:
    check_known("reduction", reduction, SET_REDUCTIONS)
    channels = [v.num_channels for v in voxels]
    if len(set(channels)) > 1:
        raise InputError(
            f"{join} of {' and '.join(map(str, channels))} channels: both must agree; to keep "
            f"them apart use vx.cat(voxels, join={join!r})"
        )
    lattice = same_lattice(voxels, join)
    if reduction == "mean":
        for operand in voxels:
            check_mean_digits(operand.features)
    geometry, rows = _joined([v.geometry for v in voxels], join, capacity)
    parts = tuple(gather_rows(v.features, row) for v, row in zip(voxels, rows, strict=True))
    dtype = jnp.result_type(*parts)
    features = _reduce(parts, rows, reduction, dtype)
    return Voxels(geometry, features, *lattice)


def _joined(
    sources: Sequence[VoxelGeometry], join: Join, capacity: int | None
) -> tuple[VoxelGeometry, Rows]:
    """Return the geometry of the union or intersection, and the source rows of its voxels.

    The second result is a tuple with one array ``int32[rows of the geometry]`` for each source. It
    has, for each voxel, the row of this voxel in the source, or -1. ``join`` is ``"union"`` or
    ``"intersection"``; ``capacity`` is as in :func:`cat`.
    """
    first, *others = sources
    if capacity is None and all(first.same_as(other) for other in others):
        geometry = functools.reduce(VoxelGeometry.with_drops_of, others, first)
        return geometry, (_own_rows(first.coords),) * len(sources)
    coords = tuple(source.coords for source in sources)
    if join == "union":
        found = unique_sites(stacked(coords), capacity)
        rows = _origins(
            found.inverse, tuple(rows.shape[0] for rows in coords), found.coords.shape[0]
        )
        return new_geometry(found, sources, level_capacities=joint_capacities(sources)), rows
    smallest = min(range(len(sources)), key=lambda index: sources[index].capacity)
    base = sources[smallest]
    matches, common, number = _matches(coords, smallest)
    size = choose_capacity(capacity, base.capacity, number)
    found = kept_rows(base.coords, common, size)
    rows = tuple(_follow(match, found.source) for match in matches)
    return new_geometry(found, sources, level_capacities=base.level_capacities), rows


@in_either()
def _own_rows(xp: Any, coords: Any) -> Any:
    """Return ``int32[N]``: ``0, 1, 2, ...``, but -1 in padding rows."""
    return xp.where(coords[:, 0] != PAD, xp.arange(coords.shape[0], dtype=np.int32), np.int32(-1))


@in_either("lengths", "capacity")
def _origins(xp: Any, inverse: Any, lengths: tuple[int, ...], capacity: int) -> Any:
    """Return, for each of several sources, the source's row that goes to each output row.

    The result is a tuple of arrays ``int32[capacity]``, one for each source, with -1 where the
    source has no row for the output row.

    Args:
      inverse: ``int32[sum(lengths)]``, the output row of each row of the concatenated sources, or
        -1.
      lengths: number of rows of each source.
      capacity: number of output rows.
    """
    read = sources_on_host if xp is np else source_rows
    return tuple(read(part, capacity) for part in xp.split(inverse, np.cumsum(lengths)[:-1]))


@in_either("base")
def _matches(xp: Any, coords: Any, base: int) -> Any:
    """Find each of the N rows of ``coords[base]`` in all arrays of the tuple ``coords``.

    Returns:
      Three values. A tuple with ``int32[N]`` for each array: the index of the equal row, or -1.
      ``bool[N]``: which of the rows are in all arrays. ``int32[]``: the number of these rows.
    """
    find, smallest = rows_on_host if xp is np else rows_at, coords[base]
    own = xp.arange(smallest.shape[0], dtype=np.int32)
    matches = tuple(
        own if index == base else find(rows, smallest) for index, rows in enumerate(coords)
    )
    common = smallest[:, 0] != PAD
    for match in matches:
        common &= match >= 0
    return matches, common, xp.sum(common, dtype=np.int32)


@in_either()
def _follow(xp: Any, match: Any, source: Any) -> Any:
    """Return ``match[source]``, -1 where ``source`` is -1; both are arrays of row indices."""
    return xp.where(source < 0, np.int32(-1), match[xp.maximum(source, 0)])


@in_either("reduction", "dtype")
def _reduce(xp: Any, parts: Any, rows: Any, reduction: SetReduction, dtype: Any) -> Any:
    """Return ``[capacity, C]``: features of several operands, combined over those with the voxel.

    ``parts`` has an array ``[capacity, C]`` for each operand, zero where the operand lacks the
    voxel. ``rows`` has an array ``int32[capacity]`` for each operand, -1 where the operand lacks
    the voxel. ``dtype`` is the common dtype of the operands.
    """
    wide = wide_fraction(dtype) if reduction == "mean" else accumulator(dtype)
    here = [(row >= 0)[:, None] for row in rows]
    parts = [part.astype(wide) for part in parts]
    if reduction in ("sum", "mean"):
        total = functools.reduce(operator.add, parts)
        if reduction == "mean":
            number = functools.reduce(operator.add, [h.astype(wide) for h in here])
            return (total / xp.maximum(number, 1)).astype(fraction_dtype(dtype))
        return total.astype(product_dtype(dtype))
    pick = xp.maximum if reduction == "max" else xp.minimum
    result, known = parts[0], here[0]
    for part, present in zip(parts[1:], here[1:], strict=True):
        best = xp.where(known, pick(result, part), part)
        result, known = xp.where(present, best, result), known | present
    return result.astype(dtype)


def same_lattice(voxels: Sequence[Voxels], operation: str) -> tuple[Any, Any]:
    """Check that voxels are on one lattice; return their ``(voxel_size, origin)``.

    A voxel size or origin that is not set agrees with any other.

    Raises:
      InputError: the list is empty, or operands have different strides, batch sizes, voxel sizes or
        origins. Under ``jax.jit`` origins are not compared, because they have no values.
    """
    if not voxels:
        raise InputError(f"{operation} needs at least one Voxels, got an empty list")
    first = voxels[0]
    for other in voxels[1:]:
        for name in ("stride", "batch_size"):
            ours, theirs = getattr(first, name), getattr(other, name)
            if ours != theirs:
                raise InputError(
                    f"{operation} of voxels with {name}={ours} and {name}={theirs}: both must agree"
                )
    sizes = [v.voxel_size for v in voxels if v.voxel_size]
    origins = [v.origin for v in voxels if isinstance(v.origin, Origin)]
    other_size = next((size for size in sizes if size != sizes[0]), None)
    other_origin = next((origin for origin in origins if origin.differs_from(origins[0])), None)
    for name, values, other in (
        ("voxel_size", sizes, other_size),
        ("origin", origins, other_origin),
    ):
        if other is not None:
            raise InputError(
                f"{operation} of voxels with {name}={values[0]} and {other}: equal coordinates "
                "are different places; voxelize them alike"
            )
    return next(iter(sizes), ()), next(iter(origins), ())


def _can_join(arrays: Sequence[jax.Array]) -> bool:
    """Return whether the operator ``_cat`` supports these arrays.

    It needs the native library, and two or more arrays of one floating-point dtype. Without the
    library, eager calls would compile a program for each size.
    """
    if _native.unavailable() is not None:
        return False
    dtypes = {array.dtype for array in arrays}
    return len(arrays) > 1 and len(dtypes) == 1 and dtypes.pop().name in FRACTIONS


def _cat_portably(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Concatenate feature arrays along the channels; return the result in a tuple.

    The last of ``arrays`` is a mask ``bool[N]``. Rows where the mask is False become zero.
    """
    *sides, valid = arrays
    joined = jnp.concatenate(sides, axis=1)
    return (jnp.where(valid[:, None], joined, jnp.zeros((), joined.dtype)),)


def _cat_natively(call: Any, *arrays: Any) -> Any:
    first, width = arrays[0], sum(side.shape[1] for side in arrays[:-1])
    return call("cat", (jax.ShapeDtypeStruct((first.shape[0], width), first.dtype),), *arrays)


def _cat_gradients(call: Any, dy: Any, *arrays: Any, moves: tuple[int, ...]) -> Any:
    *sides, valid, _ = arrays
    results = [jax.ShapeDtypeStruct(side.shape, side.dtype) for side in sides]
    found = call("cat_gradients", results, dy, valid)
    return tuple(found[place] for place in moves)


_cat = differentiable_operator("voxax_cat", _cat_natively, _cat_portably, _cat_gradients)
