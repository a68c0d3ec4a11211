"""Fold the voxels of a block into the channels of one coarse voxel, and unfold them again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.arguments import output_voxels, request_map


@checked_operator
def space_to_channel(
    voxels: Voxels, factor: int | Sequence[int] = 2, *, capacity: int | None = None
) -> Voxels:
    """Fold each block of voxels into one coarse voxel that has the channels of all of them.

    Args:
      voxels: input with ``C`` channels.
      factor: edge of a block, an integer or one per axis.
      capacity: static number of rows of the result; None takes the capacity that :func:`voxax.plan`
        gave this level, or without a plan the input's.

    Returns:
      Voxels at ``unique(floor(coords / factor))`` with ``factor**D * C`` channels: the channels of
      the block's cells in lexicographic order. Channels of cells without a voxel are zero.

    Raises:
      InputError: the factor is below 1, or has another number of axes.
      CapacityError: there are more coarse voxels than ``capacity``; only in eager calls.
    """
    ndim = voxels.geometry.ndim
    blocks = per_axis(factor, ndim, "factor")
    kmap = request_map(voxels, blocks, blocks, capacity=capacity)
    own, whole = kmap.with_halo(voxels.features)
    source = jnp.concatenate([own, jnp.zeros((1, voxels.num_channels), own.dtype)])
    rows = jnp.where(whole.neighbors < 0, whole.in_capacity, whole.neighbors)
    return output_voxels(voxels, kmap, source[rows].reshape(kmap.out_capacity, -1))


@checked_operator
def channel_to_space(
    voxels: Voxels,
    factor: int | Sequence[int] = 2,
    out_voxels: Voxels | None = None,
    *,
    capacity: int | None = None,
) -> Voxels:
    """Unfold channels into voxels: the inverse of :func:`space_to_channel`.

    Args:
      voxels: input with ``factor**D * C`` channels, ordered by cell as in :func:`space_to_channel`.
      factor: edge of a block, an integer or one per axis.
      out_voxels: the fine voxels to return to; None creates every cell of every block.
      capacity: static number of rows of the result if ``out_voxels`` is None; needed under
        ``jax.jit``.

    Returns:
      Voxels with ``C`` channels on the fine lattice.

    Raises:
      InputError: the number of channels is not a multiple of the number of cells of a block.
    """
    blocks = per_axis(factor, voxels.geometry.ndim, "factor")
    cells = math.prod(blocks)
    if voxels.num_channels % cells:
        raise InputError(
            f"{voxels.num_channels} channels for blocks of {blocks}: expected a multiple of {cells}"
        )
    generative = out_voxels is None
    kmap = request_map(voxels, blocks, blocks, 1, True, generative, out_voxels, capacity)
    # A fine voxel lies in one block: a single tap of its row is set.
    coarse, whole = kmap.with_halo(voxels.features)
    parent = jnp.max(whole.neighbors, axis=1)
    cell = jnp.argmax(whole.neighbors, axis=1)
    source = coarse.reshape(whole.in_capacity * cells, -1)
    taken = source[jnp.maximum(parent, 0) * cells + cell.astype(jnp.int32)]
    features = jnp.where((parent >= 0)[:, None], taken, jnp.zeros((), taken.dtype))
    return output_voxels(voxels, kmap, features, out_voxels)
