"""Normalisation of every scene by itself: the scenes of a batch share no statistics."""

from __future__ import annotations

import functools
from typing import TypeVar

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Points, Voxels
from voxax.geometry.halo import split_axis
from voxax.nn.functional.norm import clear_padding
from voxax.nn.functional.norm_per_voxel import check_affine

Scenes = TypeVar("Scenes", Voxels, Points)


def group_norm(
    voxels: Scenes,
    num_groups: int,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    epsilon: float = 1e-5,
) -> Scenes:
    """Each scene's groups of channels to mean 0 and variance 1, then ``* scale + bias``.

    Statistics are taken over the group's channels and all voxels of the scene, on all shards where
    it is split over a mesh axis.

    Args:
      voxels: Voxels or Points, ``C`` channels; scenes without voxels are welcome.
      num_groups: divides C; group g holds channels ``g * C/num_groups`` and following.
      scale, bias: ``[C]``; None leaves them out.
      epsilon: added to the (biased) variance.

    Returns:
      The same voxels; statistics in at least float32, features in the input's dtype.

    Raises:
      InputError: groups that do not divide the channels, a scale or bias of another shape.

    Source: Wu and He, "Group Normalization", ECCV 2018.
    """
    channels = voxels.features.shape[1]
    check_affine(channels, scale, bias)
    if num_groups < 1 or channels % num_groups:
        raise InputError(f"num_groups={num_groups} must divide the {channels} channels")
    features = _group_norm(
        voxels.features,
        voxels.valid,
        scene_index(voxels),
        scale,
        bias,
        batch_size=voxels.batch_size,
        num_groups=num_groups,
        epsilon=epsilon,
        axis=split_axis(voxels),
    )
    return voxels.replace_features(features)


def instance_norm(
    voxels: Scenes,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    epsilon: float = 1e-5,
) -> Scenes:
    """Each channel of each scene to mean 0 and variance 1 over the scene's voxels.

    Arguments, result and errors as in :func:`group_norm`, with one group for each channel.

    Source: Ulyanov, Vedaldi, Lempitsky, "Instance Normalization", 2016.
    """
    return group_norm(voxels, voxels.features.shape[1], scale, bias, epsilon)


def scene_index(voxels: Voxels | Points) -> jax.Array:
    """``int32[capacity]``: the scene of each row; padding rows may hold anything."""
    return voxels.batch_index if isinstance(voxels, Points) else voxels.coords[:, 0]


@functools.partial(jax.jit, static_argnames=("batch_size", "num_groups", "epsilon", "axis"))
def _group_norm(
    features: jax.Array,
    valid: jax.Array,
    scene: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    *,
    batch_size: int,
    num_groups: int,
    epsilon: float,
    axis: str | None,
) -> jax.Array:
    x = clear_padding(features, valid)
    wide, channels = x.dtype, x.shape[1]
    members = (scene[:, None] == jnp.arange(batch_size, dtype=scene.dtype)[None, :]) & valid[
        :, None
    ]
    number = jnp.sum(members, axis=0, dtype=jnp.int32) * (channels // num_groups)
    if axis is not None:
        number = jax.lax.psum(number, axis)
    number = jnp.maximum(number, 1).astype(wide)
    zero = jnp.zeros((), wide)

    # One scene after the other, by selection. Adding into a few rows by index would collide all
    # the time, in an order that differs between runs on a GPU; a product with the matrix of
    # members would carry one scene's NaN into all others.
    def mean_of(values: jax.Array) -> jax.Array:
        """``[batch_size, C]``: the mean of ``values [N, C]`` in each scene's group."""
        total = jax.lax.map(
            lambda mine: jnp.sum(jnp.where(mine[:, None], values, zero), axis=0), members.T
        )
        if axis is not None:
            total = jax.lax.psum(total, axis)
        total = total.reshape(batch_size, num_groups, -1).sum(axis=2)
        return jnp.repeat(total / number[:, None], channels // num_groups, axis=1)

    def read(statistic: jax.Array) -> jax.Array:
        """``[N, C]``: the statistic ``[batch_size, C]`` of each row's scene, zero in padding."""

        def select(rows: jax.Array, scene: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            mine, value = scene
            return jnp.where(mine[:, None], value[None, :], rows), None

        return jax.lax.scan(select, jnp.zeros_like(x), (members.T, statistic))[0]

    centred = x - read(mean_of(x))
    factor = jax.lax.rsqrt(mean_of(centred * centred) + epsilon)
    if scale is not None:
        factor = factor * scale.astype(wide)[None, :]
    y = centred * read(factor)
    if bias is not None:
        y = y + bias.astype(wide)[None, :]
    return y.astype(features.dtype)
