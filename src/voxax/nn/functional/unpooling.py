"""Back from pooled voxels to those they were pooled from."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.errors import GeometryMismatchError, InputError
from voxax.geometry import KernelMap, KernelShape, Voxels, result_geometry
from voxax.geometry.dtypes import accumulator
from voxax.geometry.halo import refuse_shard
from voxax.nn.functional.pooling import Size, pooling_map, window_mean


def unpool(
    voxels: Voxels,
    out_voxels: Voxels,
    indices: jax.Array | None = None,
    kernel_size: Size = 2,
    stride: Size | None = None,
    dilation: Size = 1,
    *,
    kernel_shape: KernelShape = "box",
    kernel_map: KernelMap | None = None,
) -> Voxels:
    """Spread pooled features over the voxels they came from.

    Args:
      voxels: pooled voxels, ``C`` channels.
      out_voxels: the voxels to return to; only their coordinates matter.
      indices: ``int32[capacity, C]`` from :func:`max_pool`: every value goes back to the row
        it was taken from, all others are zero. Values that return to the same row add up.
        None copies: every output gets the mean of the pooled voxels whose window holds it.
      kernel_size, stride, dilation, kernel_shape, kernel_map: the pooling's, used without
        ``indices``; ``kernel_map`` is the transposed one, e.g. ``pooling_map.transpose()``.

    Returns:
      Voxels on ``out_voxels``' coordinates with ``C`` channels.

    Raises:
      InputError: ``indices`` of another shape than the features, or on one shard of a scene.
      GeometryMismatchError: a ``kernel_map`` that does not lead back to ``out_voxels``.
    """
    if indices is None:
        target = out_voxels if kernel_map is None else None
        kmap = pooling_map(
            voxels,
            kernel_size,
            stride,
            dilation,
            transposed=kernel_map is None,
            kernel_shape=kernel_shape,
            out_voxels=target,
            kernel_map=kernel_map,
        )
        _check_target(kmap, out_voxels)
        geometry = result_geometry(kmap, voxels.geometry, out_voxels.geometry)
        features = window_mean(voxels, kmap)
        return dataclasses.replace(voxels, geometry=geometry, features=features)
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
    """A map that the caller gave must lead back to ``out_voxels``."""
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
    """``out[indices[m, c], c] += features[m, c]``: ``[capacity, C]``."""
    dtype = features.dtype
    wide = accumulator(dtype)
    row = jnp.where(indices < 0, capacity, indices)
    channel = jnp.broadcast_to(jnp.arange(features.shape[1], dtype=jnp.int32)[None, :], row.shape)
    out = jnp.zeros((capacity, features.shape[1]), wide)
    return out.at[row, channel].add(features.astype(wide), mode="drop").astype(dtype)
