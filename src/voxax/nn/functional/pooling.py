"""Pooling over the voxels under a kernel."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._native.on_cpu import library_call, natively_on_cpu
from voxax.geometry import KernelMap, KernelShape, Voxels, result_geometry
from voxax.geometry.dtypes import accumulator, mean_of
from voxax.geometry.halo import refuse_shard
from voxax.nn.functional.checks import request_map
from voxax.products import convolve

Size = int | Sequence[int]


class Window(TypedDict, total=False):
    """Keyword arguments that every pooling shares, as in ``spatially_sparse_conv``."""

    kernel_shape: KernelShape
    generative: bool
    out_voxels: Voxels | None
    capacity: int | None
    kernel_map: KernelMap | None


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
    return _pooled(voxels, kmap, _window_sum(voxels, kmap), window)


def mean_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    **window: Unpack[Window],
) -> Voxels:
    """Mean over the voxels under the kernel that exist.

    Arguments, result and errors as in :func:`sum_pool`.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    return _pooled(voxels, kmap, window_mean(voxels, kmap), window)


@overload
def max_pool(
    voxels: Voxels, *args: Any, return_indices: Literal[False] = False, **options: Any
) -> Voxels: ...
@overload
def max_pool(
    voxels: Voxels, *args: Any, return_indices: Literal[True], **options: Any
) -> tuple[Voxels, jax.Array]: ...
def max_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    return_indices: bool = False,
    **window: Unpack[Window],
) -> Voxels | tuple[Voxels, jax.Array]:
    """Maximum over the voxels under the kernel, channel by channel.

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
    pooled = _pooled(voxels, kmap, take_rows(features, indices), window)
    return (pooled, indices) if return_indices else pooled


def min_pool(
    voxels: Voxels,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    **window: Unpack[Window],
) -> Voxels:
    """Minimum over the voxels under the kernel.

    Arguments, result and errors as in :func:`sum_pool`.
    """
    kmap = _window_map(voxels, kernel_size, stride, dilation, window)
    features, whole = kmap.with_halo(voxels.features)
    indices = extreme_rows(features, whole.neighbors, largest=False)
    return _pooled(voxels, kmap, take_rows(features, indices), window)


def _window_map(
    voxels: Voxels, kernel_size: Size, stride: Size | None, dilation: Size, window: Window
) -> KernelMap:
    if unknown := set(window) - set(Window.__annotations__):
        raise TypeError(
            f"unexpected keyword argument {', '.join(map(repr, sorted(unknown)))}; a pooling "
            f"window takes {', '.join(Window.__annotations__)}"
        )
    return pooling_map(voxels, kernel_size, stride, dilation, **window)


def pooling_map(
    voxels: Voxels,
    kernel_size: Size,
    stride: Size | None,
    dilation: Size,
    *,
    transposed: bool = False,
    **window: Unpack[Window],
) -> KernelMap:
    """The map of a pooling window; ``stride=None`` takes ``kernel_size``, a partition."""
    if stride is None:
        stride = kernel_size if window.get("kernel_map") is None else 1
    return request_map(
        voxels,
        kernel_size,
        stride,
        dilation,
        transposed,
        window.get("generative", False),
        window.get("out_voxels"),
        window.get("capacity"),
        window.get("kernel_map"),
        window.get("kernel_shape", "box"),
    )


@functools.partial(jax.jit, static_argnames="largest")
def extreme_rows(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> jax.Array:
    """Input row of each window's largest (or smallest) value.

    Args:
      features: ``[N, C]``.
      neighbors: ``int32[M, K]``, input row or -1.
      largest: maximum or minimum. NaN wins over every number, as in ``jnp.max``.

    Returns:
      ``int32[M, C]``, -1 where the window is empty. One pass per tap: the gathered
      ``[M, K, C]`` is never held.
    """
    features = jax.lax.stop_gradient(features)
    find = _find_natively if features.dtype in _NATIVE_DTYPES else _scan_taps
    return find(features, neighbors, largest=largest)[0]


_NATIVE_DTYPES = (jnp.float32, jnp.float64, jnp.bfloat16)
_TILE = 256  # output rows of a unit of work


def _visit_tiles(features: jax.Array, neighbors: jax.Array, *, largest: bool) -> tuple[jax.Array]:
    shape = jax.ShapeDtypeStruct((neighbors.shape[0], features.shape[1]), jnp.int32)
    target, tile = "voxax_extreme_rows", np.int64(_TILE)
    return (library_call(target, shape, features, neighbors, largest=largest, tile=tile),)


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


_find_natively = natively_on_cpu("extreme_rows", _visit_tiles, _scan_taps)


def take_rows(features: jax.Array, indices: jax.Array) -> jax.Array:
    """``features[indices[m, c], c]``, zero where the index is -1: ``[M, C]``."""
    taken = jnp.take_along_axis(features, jnp.maximum(indices, 0), axis=0)
    return jnp.where(indices >= 0, taken, jnp.zeros((), features.dtype))


def _window_sum(voxels: Voxels, kmap: KernelMap) -> jax.Array:
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), voxels.features.dtype)
    return convolve(voxels.features, ones, kmap)


def window_mean(voxels: Voxels, kmap: KernelMap) -> jax.Array:
    """Mean of the rows under each output's taps, ``[out_capacity, C]``; zero where none is."""
    dtype = voxels.features.dtype
    wide = accumulator(dtype)
    ones = jnp.ones((kmap.num_offsets, voxels.num_channels), wide)
    total = convolve(voxels.features.astype(wide), ones, kmap)
    number = jnp.maximum(jnp.sum(kmap.neighbors >= 0, axis=1, dtype=jnp.int32), 1)
    return mean_of(total, number.astype(wide)[:, None]).astype(dtype)


def _pooled(voxels: Voxels, kmap: KernelMap, features: jax.Array, window: Window) -> Voxels:
    out_voxels = window.get("out_voxels")
    target = None if out_voxels is None else out_voxels.geometry
    geometry = result_geometry(kmap, voxels.geometry, target)
    return dataclasses.replace(voxels, geometry=geometry, features=features)
