"""Between points and voxels that exist: read features at positions, and the adjoint.

The weights are those of multilinear interpolation between voxel centres, as in the
point-voxel networks of Liu et al., "Point-Voxel CNN for Efficient 3D Deep Learning",
NeurIPS 2019, and Tang et al., "Searching Efficient 3D Architectures with Sparse
Point-Voxel Convolution", ECCV 2020.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.geometry.halo import refuse_shard
from voxax.geometry.points import Points
from voxax.geometry.stencil import Cloud, Lattice, cloud_of, lattice_of, stencil
from voxax.geometry.voxels import Voxels

Interpolation = Literal["nearest", "trilinear"]
INTERPOLATIONS = ("nearest", "trilinear")


@overload
def devoxelize(
    voxels: Voxels,
    positions: Points,
    batch_index: Any = ...,
    *,
    interpolation: Interpolation = ...,
    normalize: bool = ...,
) -> Points: ...


@overload
def devoxelize(
    voxels: Voxels,
    positions: Any,
    batch_index: Any = ...,
    *,
    interpolation: Interpolation = ...,
    normalize: bool = ...,
) -> jax.Array: ...


def devoxelize(
    voxels: Voxels,
    positions: Any,
    batch_index: Any = None,
    *,
    interpolation: Interpolation = "trilinear",
    normalize: bool = False,
) -> Any:
    """Read voxel features at positions.

    ``nearest`` is the voxel that contains the point (the one :func:`voxax.voxelize` and
    striding would put it in). ``trilinear`` is multilinear in D dimensions between the
    centres of the ``2**D`` voxels around the point.

    Args:
      voxels: ``C`` channels; ``voxel_size`` and ``origin`` place them (1 and 0 if not set).
      positions: ``float[N, D]``, or a :class:`voxax.Points`, whose padding is left out.
      batch_index: ``int[N]``, the scene of each point; None puts all in scene 0 (or takes
        that of the Points).
      interpolation: ``nearest`` or ``trilinear``.
      normalize: a missing voxel counts as zero by default. With True the weights of the
        voxels that exist are scaled to sum to one; where none does (or all of them have
        weight zero) the result is zero.

    Returns:
      ``[N, C]``, or Points with these features; zero for points that are not finite, whose
      cell lies outside ``[-2**30, 2**30)``, or whose scene does not exist. Interpolated in at
      least float32, returned in the features' dtype. Differentiable in features and (trilinear)
      positions, where it is continuous and piecewise polynomial, rational if normalized.

    Raises:
      InputError: wrong rank or dtype, an unknown interpolation, integers to interpolate.
    """
    refuse_shard(voxels, "devoxelize()")
    cloud = cloud_of(voxels, positions, batch_index)
    _check(interpolation, voxels.features.dtype)
    features = _read(
        voxels.features,
        voxels.coords,
        cloud,
        lattice_of(voxels, cloud.positions.dtype),
        interpolation,
        normalize,
    )
    return positions.replace_features(features) if isinstance(positions, Points) else features


def splat(
    positions: Any,
    features: Any,
    out_voxels: Voxels,
    batch_index: Any = None,
    *,
    interpolation: Interpolation = "trilinear",
) -> Voxels:
    """Scatter point features onto voxels that exist: the adjoint of :func:`devoxelize`.

    Each point adds its features to the voxel that contains it (``nearest``), or to the
    ``2**D`` voxels around it with the weights of multilinear interpolation. What falls on
    voxels that do not exist is lost.

    Args:
      positions: ``float[N, D]``, or a :class:`voxax.Points`.
      features: ``[N, C]``; None takes those of the Points.
      out_voxels: the voxels to produce; their features are not read.
      batch_index: as in :func:`devoxelize`.
      interpolation: ``nearest`` or ``trilinear``.

    Returns:
      Voxels on the geometry of ``out_voxels`` with ``C`` channels in the features' dtype,
      summed in at least float32.

    Raises:
      InputError: as :func:`devoxelize`; no features, or another number of rows.
    """
    if features is None and isinstance(positions, Points):
        features = positions.features
    if features is None:
        raise InputError("splat needs features= [N, C], or Points as positions")
    refuse_shard(out_voxels, "splat()")
    features = jnp.asarray(features)
    cloud = cloud_of(out_voxels, positions, batch_index)
    rows = cloud.positions.shape[0]
    if features.ndim != 2 or features.shape[0] != rows:
        raise InputError(
            f"features of shape {tuple(features.shape)} for {rows} positions: expected [{rows}, C]"
        )
    _check(interpolation, features.dtype)
    lattice = lattice_of(out_voxels, cloud.positions.dtype)
    summed = _add(features, out_voxels.coords, cloud, lattice, interpolation)
    return dataclasses.replace(out_voxels, features=summed)


def _check(interpolation: str, dtype: Any) -> None:
    if interpolation not in INTERPOLATIONS:
        raise InputError(
            f"unknown interpolation {interpolation!r}; known: {', '.join(INTERPOLATIONS)}"
        )
    if interpolation == "trilinear" and not jnp.issubdtype(dtype, jnp.floating):
        raise InputError(
            f"trilinear interpolation of {dtype} features: give floating-point features, or "
            "interpolation='nearest'"
        )


@functools.partial(jax.jit, static_argnames=("interpolation", "normalize"))
def _read(
    features: jax.Array,
    coords: jax.Array,
    cloud: Cloud,
    lattice: Lattice,
    interpolation: str,
    normalize: bool,
) -> jax.Array:
    # Widened before the reads, not after: gradients then sum over points in the wide dtype.
    wide = _work_dtype(features.dtype, cloud.positions.dtype)
    x = features.astype(wide)
    rows, weights = stencil(coords, cloud, lattice, interpolation, normalize, wide)
    total = jnp.zeros((cloud.positions.shape[0], x.shape[1]), wide)
    # One tap after the other: all at once would hold 2**D rows for each point.
    for row, weight in zip(rows, weights, strict=True):
        found = x.at[row].get(mode="fill", fill_value=0)
        total = total + (found if weight is None else found * weight[:, None])
    return jnp.where(cloud.valid[:, None], total, jnp.zeros((), wide)).astype(features.dtype)


@functools.partial(jax.jit, static_argnames="interpolation")
def _add(
    features: jax.Array, coords: jax.Array, cloud: Cloud, lattice: Lattice, interpolation: str
) -> jax.Array:
    wide = _work_dtype(features.dtype, cloud.positions.dtype)
    x = jnp.where(cloud.valid[:, None], features.astype(wide), jnp.zeros((), wide))
    rows, weights = stencil(coords, cloud, lattice, interpolation, False, wide)
    total = jnp.zeros((coords.shape[0], x.shape[1]), wide)
    for row, weight in zip(rows, weights, strict=True):
        total = total.at[row].add(x if weight is None else x * weight[:, None], mode="drop")
    return total.astype(features.dtype)


def _work_dtype(features: Any, positions: Any) -> Any:
    """What to interpolate in: the wider of both accumulators; integers stay as they are."""
    wide = accumulator(features)
    if not jnp.issubdtype(wide, jnp.floating):
        return wide
    return max(wide, accumulator(positions), key=lambda dtype: dtype.itemsize)
