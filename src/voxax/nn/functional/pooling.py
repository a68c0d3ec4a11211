"""Pool voxels under a kernel, return to the voxels that were pooled, and pool whole scenes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Int, Int32, Num
from voxax._native import host_products
from voxax._native.eager import threads
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.errors import GeometryMismatchError, InputError, check_known
from voxax.geometry import KernelMap, KernelShape, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, fraction_dtype, product_dtype, wide_fraction
from voxax.geometry.halo import refuse_shard, split_axis
from voxax.geometry.input_checks import check_mean_digits, check_sum_range
from voxax.geometry.row_operations import take_rows
from voxax.nn.arguments import output_voxels, refuse_arrays, request_map
from voxax.products import convolve

Size = int | Sequence[int]


class Window(TypedDict, total=False):
    """Keyword arguments that every pooling shares, as in ``spatially_sparse_conv``."""

    kernel_shape: KernelShape
    generative: bool
    out_voxels: Voxels | None
    capacity: int | None
    kernel_map: KernelMap | None


@checked_operator
def sum_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    **window: Unpack[Window],
) -> Voxels:
    """Sum over the voxels under the kernel.

    Args:
      voxels: input, ``C`` channels.
      kernel_size, dilation: integers, or one per axis.
      stride: the same; None takes ``kernel_size`` (every input falls into one window).
      window: ``kernel_shape``, ``generative``, ``out_voxels``, ``capacity``, ``kernel_map``, as
        in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels with ``C`` channels in the input's dtype (int32 for 8- and 16-bit integers); a
      window without voxels (only with ``out_voxels``) gives zeros.

    Raises:
      InputError, CapacityError: as there.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), voxels.features.dtype)
    features = convolve(voxels.features, ones, kmap)
    return output_voxels(voxels, kmap, features, window.get("out_voxels"))


@checked_operator
def mean_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    **window: Unpack[Window],
) -> Voxels:
    """Take the mean over the voxels under the kernel that exist.

    Arguments, result and errors as in :func:`sum_pool`, but that means of integers are float32.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    return output_voxels(voxels, kmap, window_mean(voxels, kmap), window.get("out_voxels"))


@overload
def max_pool(
    voxels: Voxels, *args: Any, return_indices: Literal[False] = False, **options: Any
) -> Voxels: ...
@overload
def max_pool(
    voxels: Voxels, *args: Any, return_indices: Literal[True], **options: Any
) -> tuple[Voxels, Int32[Array, "out_capacity C"]]: ...
@checked_operator
def max_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    return_indices: bool = False,
    **window: Unpack[Window],
) -> Voxels | tuple[Voxels, Int32[Array, "out_capacity C"]]:
    """Take the maximum over the voxels under the kernel, channel by channel.

    Args:
      voxels, kernel_size, stride, dilation, window: as in :func:`sum_pool`.
      return_indices: also return ``int32[out_capacity, C]``, the input row that each maximum
        came from (-1: none), for :func:`unpool`. Of equal values the first tap's counts.

    Returns:
      ``Voxels``, or ``(Voxels, indices)``. The gradient goes to the rows in ``indices``.

    Raises:
      InputError: ``return_indices`` on one shard of a scene, whose maxima may lie on another.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    if return_indices:
        refuse_shard(voxels, "max_pool(return_indices=True)")
    features, whole = kmap.with_halo(voxels.features)
    indices = extreme_rows(features, whole.neighbors, largest=True)
    taken = take_rows(features, indices)
    pooled = output_voxels(voxels, kmap, taken, window.get("out_voxels"))
    return (pooled, indices) if return_indices else pooled


@checked_operator
def min_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    **window: Unpack[Window],
) -> Voxels:
    """Take the minimum over the voxels under the kernel.

    Arguments, result and errors as in :func:`sum_pool`.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    features, whole = kmap.with_halo(voxels.features)
    indices = extreme_rows(features, whole.neighbors, largest=False)
    taken = take_rows(features, indices)
    return output_voxels(voxels, kmap, taken, window.get("out_voxels"))


def _window_map(
    voxels: Voxels,
    kernel_size: Size,
    stride: Size | None,
    dilation: Size,
    window: Window,
    transposed: bool = False,
) -> KernelMap:
    """Return the map of a pooling window; ``stride=None`` takes ``kernel_size``, a partition."""
    if unknown := set(window) - set(Window.__annotations__):
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, sorted(unknown)))}; a pooling "
            f"window takes {', '.join(Window.__annotations__)}"
        )
    if stride is None:
        stride = kernel_size if window.get("kernel_map") is None else 1
    return request_map(voxels, kernel_size, stride, dilation, transposed, **window)


def extreme_rows(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> jax.Array:
    """Return the input row of each window's largest (or smallest) value.

    Args:
      features: ``[N, C]``.
      neighbors: ``int32[M, K]``, input row or -1.
      largest: maximum or minimum. NaN wins over every number, as in ``jnp.max``.

    Returns:
      ``int32[M, C]``, -1 where the window is empty. One pass per tap: the gathered
      ``[M, K, C]`` is never held.
    """
    features = _compat.without_derivative(features)
    find = _find_natively if features.dtype in _NATIVE_DTYPES else _scan_taps
    return find(features, neighbors, largest=largest)[0]


_NATIVE_DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16)
_TILE = 256  # output rows of a unit of work


def _visit_tiles(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> tuple[jax.Array]:
    shape = jax.ShapeDtypeStruct((neighbors.shape[0], features.shape[1]), jnp.int32)
    target, tile = "voxax_extreme_rows", np.int64(_TILE)
    return (library_call(target, shape, features, neighbors, largest=largest, tile=tile),)


def _visit_on_host(
    features: np.ndarray, neighbors: np.ndarray, *, largest: bool
) -> tuple[np.ndarray]:
    rows, table = (np.ascontiguousarray(array) for array in (features, neighbors))
    rows = host_products.elements_of(rows)
    options = {"largest": largest, "threads": threads()}
    return (host_products.extreme_rows(rows, table, **options),)


@functools.partial(jax.jit, static_argnames="largest")
def _scan_taps(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> tuple[jax.Array]:
    shape = (neighbors.shape[0], features.shape[1])

    def visit(found: tuple[jax.Array, jax.Array], rows: jax.Array) -> tuple[Any, None]:
        best, row = found
        value = features.at[rows].get(mode="clip")
        beats = value > best if largest else value < best
        beats |= (value != value) & (best == best)
        better = (rows >= 0)[:, None] & ((row < 0) | beats)
        return (jnp.where(better, value, best), jnp.where(better, rows[:, None], row)), None

    start = jnp.zeros(shape, features.dtype), jnp.full(shape, -1, jnp.int32)
    features, neighbors, *start = _compat.vary_alike(features, neighbors, *start)
    (_, row), _ = jax.lax.scan(visit, tuple(start), neighbors.T)
    return (row,)


_find_natively = natively_on_cpu("extreme_rows", _visit_tiles, _scan_taps, eager=_visit_on_host)


def window_mean(voxels: Voxels, kmap: KernelMap) -> jax.Array:
    """Return the mean of the rows under each output's taps, ``[out_capacity, C]``, or zero."""
    check_mean_digits(voxels.features)
    dtype = voxels.features.dtype
    wide = wide_fraction(dtype)
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), wide)
    total = convolve(voxels.features.astype(wide), ones, kmap)
    number = jnp.maximum(jnp.sum(kmap.neighbors >= 0, axis=1, dtype=jnp.int32), 1)
    return (total / number.astype(wide)[:, None]).astype(fraction_dtype(dtype))


@checked_operator
def unpool(
    voxels: Voxels,
    out_voxels: Voxels,
    indices: Int[Array, "capacity C"] | None = None,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    kernel_shape: KernelShape = "box",
    kernel_map: KernelMap | None = None,
) -> Voxels:
    """Return pooled features to the voxels that they came from.

    Args:
      voxels: pooled voxels, ``C`` channels.
      out_voxels: the voxels to return to; only their coordinates matter.
      indices: ``int32[capacity, C]`` from :func:`max_pool`: every value goes back to the row
        it was taken from, all others are zero. Values that return to the same row add up.
        None copies: every output gets the mean of the pooled voxels whose window holds it, of
        integers in float32.
      kernel_size, stride, dilation, kernel_shape, kernel_map: the pooling's, used without
        ``indices``; ``kernel_map`` is the transposed one, e.g. ``pooling_map.transpose()``.

    Returns:
      Voxels on ``out_voxels``' coordinates with ``C`` channels.

    Raises:
      InputError: ``indices`` of another shape than the features, or on one shard of a scene.
      GeometryMismatchError: a ``kernel_map`` that does not lead back to ``out_voxels``.
    """
    if indices is None:
        is_built = kernel_map is None
        target = out_voxels if is_built else None
        window: Window = {"kernel_shape": kernel_shape, "out_voxels": target}
        window["kernel_map"] = kernel_map
        kmap = _window_map(voxels, kernel_size, stride, dilation, window, transposed=is_built)
        _check_target(kmap, out_voxels)
        return output_voxels(voxels, kmap, window_mean(voxels, kmap), out_voxels)
    refuse_shard(voxels, "unpool() with indices")
    if indices.shape != voxels.features.shape:
        raise InputError(
            f"indices of shape {indices.shape} for features of shape {voxels.features.shape}: "
            "give those that max_pool(..., return_indices=True) returned with these voxels"
        )
    features = _scatter_rows(voxels.features, indices, out_voxels.capacity)
    geometry = out_voxels.geometry.with_drops_of(voxels.geometry)
    return dataclasses.replace(out_voxels, geometry=geometry, features=features)


def _check_target(kernel_map: KernelMap, out_voxels: Voxels) -> None:
    """Raise :class:`GeometryMismatchError` unless the map leads back to ``out_voxels``."""
    out, target = kernel_map.out_geometry, out_voxels.geometry
    agrees = kernel_map.spec.transposed or kernel_map.spec.keeps_coords
    agrees &= (out.capacity, out.stride, out.batch_size) == (
        target.capacity,
        target.stride,
        target.batch_size,
    )
    if agrees and not _compat.is_traced(out.coords, target.coords):
        agrees = out.same_as(target)
    if not agrees:
        raise GeometryMismatchError(
            f"{kernel_map!r} does not lead back to {target!r}: give the pooling's map transposed, "
            "pooling_map.transpose(), and the voxels that were pooled"
        )


def _scatter_rows(features: jax.Array, indices: jax.Array, capacity: int) -> jax.Array:
    """Return ``out [capacity, C]`` with ``out[indices[m, c], c] += features[m, c]``; int32 for 8-
    and 16-bit integers."""
    dtype = features.dtype
    wide = accumulator(dtype)
    row = jnp.where(indices < 0, capacity, indices)
    channel = jnp.broadcast_to(jnp.arange(features.shape[1], dtype=jnp.int32)[None, :], row.shape)
    out = jnp.zeros((capacity, features.shape[1]), wide)
    summed = out.at[row, channel].add(features.astype(wide), mode="drop")
    return summed.astype(product_dtype(dtype))


@checked_operator
def global_pool(
    voxels: Voxels, reduction: Literal["mean", "sum", "max", "min"] = "mean"
) -> Num[Array, "B C"]:
    """Reduce each scene to one row of features; an empty scene gives zeros.

    Of a scene that is split over a mesh axis, each shard gets the row of the whole scene.

    Args:
      voxels: ``C`` channels.
      reduction: ``mean``, ``sum``, ``max`` or ``min``.

    Returns:
      ``[batch_size, C]`` in the features' dtype, summed in at least float32; sums of 8- and
      16-bit integers in int32, means of integers in float32.

    Raises:
      InputError: an unknown reduction.
    """
    refuse_arrays("global_pool", voxels)
    check_known("reduction", reduction, ("mean", "sum", "max", "min"))
    if reduction == "mean":
        check_mean_digits(voxels.features)
    if reduction == "sum":
        check_sum_range(voxels.features, lambda f: global_pool(voxels.replace_features(f), "sum"))
    dtype = voxels.features.dtype
    scene = jnp.where(voxels.valid, voxels.coords[:, 0], voxels.batch_size)
    shape = (voxels.batch_size, voxels.num_channels)
    number = jnp.zeros((voxels.batch_size,), jnp.int32).at[scene].add(1, mode="drop")
    axis = split_axis(voxels)
    if axis is not None:
        number = jax.lax.psum(number, axis)
    zero = jnp.zeros((), dtype)
    if reduction in ("max", "min"):
        x = jnp.where(voxels.valid[:, None], voxels.features, zero)
        merge = _best_with_gradient if jnp.issubdtype(dtype, jnp.inexact) else _best
        best = merge(x, scene, voxels.batch_size, reduction, axis)
        return jnp.where(number[:, None] > 0, best, zero)
    wide = wide_fraction(dtype) if reduction == "mean" else accumulator(dtype)
    x = jnp.where(voxels.valid[:, None], voxels.features.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros(shape, wide).at[scene].add(x, mode="drop")
    if axis is not None:
        total = jax.lax.psum(total, axis)
    if reduction == "mean":
        mean = total / jnp.maximum(number, 1).astype(wide)[:, None]
        return mean.astype(fraction_dtype(dtype))
    return total.astype(product_dtype(dtype))


def _best(
    x: jax.Array, scene: jax.Array, batch_size: int, reduction: str, axis: str | None
) -> jax.Array:
    """Return the largest (smallest) row of each scene, of all its shards: ``[batch_size, C]``."""
    # Begins with the worst number there is: an infinity would stop ``jax.debug_infs``.
    numbers = jnp.where(x == x, x, jnp.zeros((), x.dtype))
    if reduction == "max":
        worst = jnp.min(numbers, axis=0)
        start = worst if axis is None else jax.lax.pmin(worst, axis)
        best = jnp.broadcast_to(start, (batch_size, x.shape[1])).at[scene].max(x, mode="drop")
        return best if axis is None else jax.lax.pmax(best, axis)
    worst = jnp.max(numbers, axis=0)
    start = worst if axis is None else jax.lax.pmax(worst, axis)
    best = jnp.broadcast_to(start, (batch_size, x.shape[1])).at[scene].min(x, mode="drop")
    return best if axis is None else jax.lax.pmin(best, axis)


_best_with_gradient = jax.custom_jvp(_best, nondiff_argnums=(2, 3, 4))


@_best_with_gradient.defjvp
def _best_jvp(
    batch_size: int,
    reduction: str,
    axis: str | None,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Share the gradient among equal rows, on whichever shard they lie."""
    scene = primals[1]
    x = _stored(primals[0], scene)
    best = _best(x, scene, batch_size, reduction, axis)
    # NaN, which wins, is not equal to itself.
    wins = (x == best.at[scene].get(mode="clip")) | (x != x)

    def total(values: jax.Array) -> jax.Array:
        start = jnp.zeros(best.shape, accumulator(x.dtype))
        found = start.at[scene].add(values.astype(start.dtype), mode="drop")
        return found if axis is None else jax.lax.psum(found, axis)

    tangent = total(jnp.where(wins, tangents[0], jnp.zeros((), x.dtype)))
    return best, (tangent / jnp.maximum(total(wins), 1)).astype(x.dtype)


def _stored(x: jax.Array, scene: jax.Array) -> jax.Array:
    """Return ``x``, computed once, while ``scene`` is not negative.

    XLA computes a cheap operand again in each loop that reads it, and may round it otherwise
    there (``a * b + c`` with one rounding or two). The row that gave the largest value is then
    equal to it no longer, and its gradient is lost: seen on the CPU, of a sum of two poolings
    under ``JAX_DISABLE_MOST_OPTIMIZATIONS``. ``optimization_barrier`` is gone before loops are
    fused. A loop whose number of rounds is not known stays.
    """
    x, scene, start = _compat.vary_alike(x, scene, jnp.zeros_like(x))
    rounds = jnp.any(scene >= 0).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda _, __: x, start)
