"""Pool the voxels of each window, undo the pooling, and pool whole scenes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Int, Int32, Num
from voxax._native import host_products
from voxax._native.eager import threads
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.errors import GeometryMismatchError, InputError, check_known
from voxax.geometry import KernelMap, KernelShape, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import accumulator, fraction_dtype, product_dtype, wide_fraction
from voxax.geometry.halo import refuse_shard, split_axis
from voxax.geometry.input_checks import check_mean_digits, check_sum_range
from voxax.geometry.row_operations import as_dtype, mean_rows, put_rows, take_rows
from voxax.nn.arguments import output_voxels, refuse_arrays, request_map
from voxax.nn.functional.normalization import scene_index
from voxax.products import convolve

Size = int | Sequence[int]


@checked_operator
def sum_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    kernel_shape: KernelShape = "box",
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
) -> Voxels:
    """Sum the features of the input voxels in the window of each output voxel.

    Args:
      voxels: input voxels, ``C`` channels.
      kernel_size: number of cells of the window along each axis, an integer or one per axis.
      dilation: distance between neighboring cells of the window, an integer or one per axis.
      stride: an integer, or one per axis. None takes ``kernel_size``, so that every input is in
        exactly one window.
      kernel_shape, generative, out_voxels, capacity, kernel_map: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels with ``C`` channels in the dtype of the input (int32 for 8- and 16-bit integers). A
      window without voxels, which only ``out_voxels`` can cause, gives zeros.

    Raises:
      InputError, CapacityError: as in :func:`voxax.nn.functional.spatially_sparse_conv`.

    Examples:
      >>> float(functional.sum_pool(voxels, 8).features[0, 0]) == len(cells)
      True
    """
    window = kernel_shape, generative, out_voxels, capacity, kernel_map
    kmap = _window_map(voxels, kernel_size, stride, dilation, *window)
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), voxels.features.dtype)
    features = convolve(voxels.features, ones, kmap)
    return output_voxels(voxels, kmap, features, out_voxels)


@checked_operator
def mean_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    kernel_shape: KernelShape = "box",
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
) -> Voxels:
    """Average the features of the voxels in each output's window; missing voxels do not count.

    Arguments, result and errors as in :func:`sum_pool`, except that integers give float32.

    Examples:
      >>> functional.mean_pool(voxels, 2).stride
      (2, 2, 2)
    """
    window = kernel_shape, generative, out_voxels, capacity, kernel_map
    kmap = _window_map(voxels, kernel_size, stride, dilation, *window)
    return output_voxels(voxels, kmap, window_mean(voxels, kmap), out_voxels)


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
    kernel_shape: KernelShape = "box",
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    return_indices: bool = False,
) -> Voxels | tuple[Voxels, Int32[Array, "out_capacity C"]]:
    """Take the maximum over the voxels in each output's window, channel by channel.

    Args:
      voxels, kernel_size, stride, dilation, kernel_shape, generative, out_voxels, capacity,
        kernel_map: as in :func:`sum_pool`.
      return_indices: whether to return ``int32[out_capacity, C]`` too, the input row of each
        maximum, for :func:`unpool`. The row is -1 in an empty window. Of equal values, the one at
        the first tap is taken.

    Returns:
      ``Voxels``, or ``(Voxels, indices)``. The gradient goes to the rows in ``indices``.

    Raises:
      InputError: ``return_indices`` is given for one shard of a split scene. Other errors are those
        of :func:`sum_pool`.

    Examples:
      >>> functional.max_pool(voxels, 2).stride
      (2, 2, 2)
    """
    window = kernel_shape, generative, out_voxels, capacity, kernel_map
    kmap = _window_map(voxels, kernel_size, stride, dilation, *window)
    if return_indices:
        refuse_shard(voxels, "max_pool(return_indices=True)")
    features, whole = kmap.with_halo(voxels.features)
    indices = extreme_rows(features, whole.neighbors, largest=True)
    taken = take_rows(features, indices)
    pooled = output_voxels(voxels, kmap, taken, out_voxels)
    return (pooled, indices) if return_indices else pooled


@checked_operator
def min_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    kernel_shape: KernelShape = "box",
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
) -> Voxels:
    """Take the minimum over the voxels in each output's window, channel by channel.

    Arguments, result and errors as in :func:`sum_pool`.
    """
    window = kernel_shape, generative, out_voxels, capacity, kernel_map
    kmap = _window_map(voxels, kernel_size, stride, dilation, *window)
    features, whole = kmap.with_halo(voxels.features)
    indices = extreme_rows(features, whole.neighbors, largest=False)
    taken = take_rows(features, indices)
    return output_voxels(voxels, kmap, taken, out_voxels)


def _window_map(
    voxels: Voxels,
    kernel_size: Size,
    stride: Size | None,
    dilation: Size,
    kernel_shape: KernelShape,
    generative: bool,
    out_voxels: Voxels | None,
    capacity: int | None,
    kernel_map: KernelMap | None,
    transposed: bool = False,
) -> KernelMap:
    """Return the kernel map of a pooling window: ``kernel_map`` if given, else a new one.

    Arguments as in :func:`sum_pool`. A new map with ``stride=None`` has the stride ``kernel_size``.
    """
    if stride is None:
        stride = kernel_size if kernel_map is None else 1
    target = generative, out_voxels, capacity, kernel_map
    return request_map(voxels, kernel_size, stride, dilation, transposed, *target, kernel_shape)


def extreme_rows(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> jax.Array:
    """Return the input row of the largest (or smallest) value in each window, for each channel.

    Args:
      features: ``[N, C]``.
      neighbors: ``int32[M, K]``, the input row of each of K taps for M outputs, or -1.
      largest: True finds the maximum, False the minimum. NaN wins over every number, as in
        ``jnp.max``.

    Returns:
      ``int32[M, C]``, -1 where the window is empty.
    """
    features = _compat.without_derivative(features)
    find = _find_natively if features.dtype in _NATIVE_DTYPES else _scan_taps
    return find(features, neighbors, largest=largest)[0]


_NATIVE_DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16)
_TILE = 256  # output rows per unit of work


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
    """Return the mean of the features in each window, ``[out_capacity, C]``; 0 without voxels.

    ``kmap`` is the kernel map of the pooling: row i of its ``neighbors`` lists the voxels in window
    i. The features are ``[in_capacity, C]``.
    """
    check_mean_digits(voxels.features)
    dtype = voxels.features.dtype
    wide = wide_fraction(dtype)
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), wide)
    total = convolve(as_dtype(voxels.features, wide), ones, kmap)
    return mean_rows(total, kmap.neighbors, fraction_dtype(dtype))


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
    """Copy pooled features back to the voxels that were pooled.

    Args:
      voxels: pooled voxels, ``C`` channels.
      out_voxels: the voxels before pooling; only their coordinates matter.
      indices: ``int32[capacity, C]`` from :func:`max_pool`. Every value is copied to the row from
        which the pooling took it. Values for the same row are added, and other rows are zero. With
        None every output gets the mean of the pooled voxels whose window contains it, in float32
        for integers.
      kernel_size, stride, dilation, kernel_shape, kernel_map: as in the pooling; used only
        without ``indices``. ``kernel_map`` is the transposed map, ``pooling_map.transpose()``.

    Returns:
      Voxels on the coordinates of ``out_voxels``, with ``C`` channels.

    Raises:
      InputError: ``indices`` and features have different shapes, or ``indices`` are given for one
        shard of a split scene.
      GeometryMismatchError: the outputs of ``kernel_map`` are not ``out_voxels``.

    Examples:
      >>> pooled, rows = functional.max_pool(voxels, 2, return_indices=True)
      >>> functional.unpool(pooled, voxels, rows).stride
      (1, 1, 1)
    """
    if indices is None:
        is_built = kernel_map is None
        window = kernel_shape, False, out_voxels if is_built else None, None, kernel_map
        kmap = _window_map(voxels, kernel_size, stride, dilation, *window, transposed=is_built)
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
    """Raise :class:`GeometryMismatchError` unless the map's outputs are the voxels ``out_voxels``.

    The map must also be transposed, or keep its coordinates. Traced coordinates are not compared,
    only capacity, stride and batch size.
    """
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
    """Return the sum of ``features [M, C]`` per target row and channel, ``[capacity, C]``.

    Value ``features[m, c]`` is added to ``out[indices[m, c], c]``; an index of -1 adds nothing, and
    entries without a value are zero. 8- and 16-bit integers give int32.
    """
    dtype = features.dtype
    summed = put_rows(
        as_dtype(features, accumulator(dtype)), as_dtype(indices, jnp.int32), capacity
    )
    return as_dtype(summed, product_dtype(dtype))


@checked_operator
def global_pool(
    voxels: Voxels, reduction: Literal["mean", "sum", "max", "min"] = "mean"
) -> Num[Array, "B C"]:
    """Reduce each scene to one row of features; an empty scene gives zeros.

    If a scene is split over a mesh axis, each shard gets the row of the whole scene.

    Args:
      voxels: Voxels with ``C`` channels.
      reduction: ``mean``, ``sum``, ``max`` or ``min``.

    Returns:
      ``[batch_size, C]`` in the dtype of the features, summed in at least float32. Sums of 8- and
      16-bit integers are int32, means of integers float32.

    Raises:
      InputError: an unknown reduction.

    Examples:
      >>> functional.global_pool(voxels, "mean").shape
      (1, 4)
    """
    refuse_arrays("global_pool", voxels)
    check_known("reduction", reduction, ("mean", "sum", "max", "min"))
    if reduction == "mean":
        check_mean_digits(voxels.features)
    if reduction == "sum":
        check_sum_range(voxels.features, lambda f: global_pool(voxels.replace_features(f), "sum"))
    dtype, axis = voxels.features.dtype, split_axis(voxels)
    scene, scenes = scene_index(voxels), voxels.batch_size
    if reduction in ("max", "min"):
        return best_by_scene(
            voxels.features, voxels.valid, scene, scenes, largest=reduction == "max", axis=axis
        )
    wide = wide_fraction(dtype) if reduction == "mean" else accumulator(dtype)
    features = as_dtype(voxels.features, dtype if dtype.name in FRACTIONS else wide)
    total, number = sum_by_scene(features, voxels.valid, scene, scenes, axis=axis)
    if reduction == "mean":
        total = total / jnp.maximum(number, 1).astype(wide)[:, None]
        return total.astype(fraction_dtype(dtype))
    return total.astype(product_dtype(dtype))


def sum_by_scene(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scenes: int,
    *,
    axis: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Return the sum ``[scenes, C]`` and the number ``int32[scenes]`` of the rows of each scene.

    Sums have the dtype of :func:`voxax.geometry.dtypes.accumulator`.

    Args:
      features: ``[N, C]``.
      valid: ``bool[N]``, which rows exist; other rows may hold anything.
      scene: ``int32[N]``, the scene of each row.
      scenes: number of scenes.
      axis: mapped axis over which scenes are split, or None.
    """
    if axis is not None or features.dtype.name not in FRACTIONS:
        return _sums_portable(features, valid, scene, scenes=scenes, axis=axis)
    total, number = _sums(features, valid, scene, scenes=scenes)
    return total, jax.lax.stop_gradient(number)


def best_by_scene(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scenes: int,
    *,
    largest: bool,
    axis: str | None = None,
) -> jax.Array:
    """Return the largest (or smallest) values of each scene, ``[scenes, C]``; 0 for an empty scene.

    NaN wins over every number. Rows of equal values share the gradient. Arguments as for
    :func:`sum_by_scene`.
    """
    options = {"scenes": scenes, "largest": largest}
    if axis is not None or features.dtype.name not in FRACTIONS:
        return _extremes_portable(features, valid, scene, axis=axis, **options)[0]
    return _extremes(features, valid, scene, **options)[0]


def _numbers(place: jax.Array, scenes: int, axis: str | None) -> jax.Array:
    number = jnp.zeros((scenes,), jnp.int32).at[place].add(1, mode="drop")
    return number if axis is None else jax.lax.psum(number, axis)


def _sums_portable(
    x: jax.Array, valid: jax.Array, scene: jax.Array, *, scenes: int, axis: str | None = None
) -> tuple[jax.Array, jax.Array]:
    wide, place = accumulator(x.dtype), jnp.where(valid, scene, scenes)
    x = jnp.where(valid[:, None], x.astype(wide), jnp.zeros((), wide))
    total = jnp.zeros((scenes, x.shape[1]), wide).at[place].add(x, mode="drop")
    return total if axis is None else jax.lax.psum(total, axis), _numbers(place, scenes, axis)


def _sums_value(call: Any, x: Any, valid: Any, scene: Any, *, scenes: int) -> Any:
    total = jax.ShapeDtypeStruct((scenes, x.shape[1]), accumulator(x.dtype))
    number = jax.ShapeDtypeStruct((scenes,), jnp.int32)
    return call("scene_sums", (total, number), x, valid, scene)


def _sums_gradients(
    call: Any, ct: Any, x: Any, valid: Any, scene: Any, *results: Any, moves: Any, scenes: int
) -> Any:
    del results, moves, scenes
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("scene_rows", (result,), ct.astype(x.dtype), valid, scene)


_sums = differentiable_operator("voxax_scene_sums", _sums_value, _sums_portable, _sums_gradients)


def _extremes_portable(
    x: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    *,
    scenes: int,
    largest: bool,
    axis: str | None = None,
) -> tuple[jax.Array]:
    place, zero = jnp.where(valid, scene, scenes), jnp.zeros((), x.dtype)
    x = jnp.where(valid[:, None], x, zero)
    merge = _best_of_scenes if jnp.issubdtype(x.dtype, jnp.inexact) else _best
    best = merge(x, place, scenes, largest, axis)
    return (jnp.where(_numbers(place, scenes, axis)[:, None] > 0, best, zero),)


def _extremes_value(
    call: Any, x: Any, valid: Any, scene: Any, *, scenes: int, largest: bool
) -> Any:
    result = jax.ShapeDtypeStruct((scenes, x.shape[1]), x.dtype)
    return call("scene_extremes", (result,), x, valid, scene, sizes=(largest,))


def _extremes_gradients(
    call: Any, ct: Any, x: Any, valid: Any, scene: Any, best: Any, *, moves: Any, **static: Any
) -> Any:
    del moves, static
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("scene_extremes_gradients", (result,), x, valid, scene, best, ct)


_extremes = differentiable_operator(
    "voxax_scene_extremes", _extremes_value, _extremes_portable, _extremes_gradients
)


def _best(
    x: jax.Array, scene: jax.Array, batch_size: int, largest: bool, axis: str | None
) -> jax.Array:
    """Return the largest or smallest value of each scene and channel, ``[batch_size, C]``.

    ``largest`` tells which. ``x [N, C]`` are the features, and ``scene int[N]`` are the scenes of
    the rows, ``batch_size`` in padding. With ``axis``, the values are taken over all shards along
    this mesh axis. The values of an empty scene are arbitrary.
    """
    # The initial value is the worst number that occurs: ``jax.debug_infs`` would refuse infinity.
    numbers = jnp.where(x == x, x, jnp.zeros((), x.dtype))
    start = jnp.min(numbers, axis=0) if largest else jnp.max(numbers, axis=0)
    if axis is not None:
        start = jax.lax.pmin(start, axis) if largest else jax.lax.pmax(start, axis)
    place = jnp.broadcast_to(start, (batch_size, x.shape[1])).at[scene]
    best = place.max(x, mode="drop") if largest else place.min(x, mode="drop")
    if axis is not None:
        best = jax.lax.pmax(best, axis) if largest else jax.lax.pmin(best, axis)
    return best


_best_of_scenes = jax.custom_jvp(_best, nondiff_argnums=(2, 3, 4))


@_best_of_scenes.defjvp
def _best_jvp(
    batch_size: int,
    largest: bool,
    axis: str | None,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Return the result of :func:`_best` and its tangent, both ``[batch_size, C]``.

    The tangent is the mean of the tangents of all rows that have the extreme value.
    """
    scene = primals[1]
    x = _stored(primals[0], scene)
    best = _best(x, scene, batch_size, largest, axis)
    # NaN wins, but NaN is not equal to itself.
    wins = (x == best.at[scene].get(mode="clip")) | (x != x)

    def total(values: jax.Array) -> jax.Array:
        start = jnp.zeros(best.shape, accumulator(x.dtype))
        found = start.at[scene].add(values.astype(start.dtype), mode="drop")
        return found if axis is None else jax.lax.psum(found, axis)

    tangent = total(jnp.where(wins, tangents[0], jnp.zeros((), x.dtype)))
    return best, (tangent / jnp.maximum(total(wins), 1)).astype(x.dtype)


def _stored(x: jax.Array, scene: jax.Array) -> jax.Array:
    """Return ``x`` so that XLA computes it only once, even if several loops read it.

    If every ``scene`` is negative, the result is zero. Without this function, XLA would recompute a
    cheap operand in each loop that reads it, and might round it differently there (``a * b + c``
    with one rounding or two). Then the row that gave the largest value would no longer equal this
    value, and would get no gradient (seen on CPU with ``JAX_DISABLE_MOST_OPTIMIZATIONS``). XLA
    removes ``optimization_barrier`` before it fuses loops, but keeps a loop of unknown length,
    which this function uses.
    """
    x, scene, start = _compat.vary_alike(x, scene, jnp.zeros_like(x))
    rounds = jnp.any(scene >= 0).astype(jnp.int32)
    return jax.lax.fori_loop(0, rounds, lambda _, __: x, start)
