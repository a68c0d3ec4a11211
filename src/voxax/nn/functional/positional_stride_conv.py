"""Convolution whose stride is each position's own: outputs are dense here, sparse there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import Voxels, prune
from voxax.nn.functional.sparse_conv import spatially_sparse_conv


def positional_stride_conv(
    voxels: Voxels,
    weight: jax.Array,
    stride: jax.Array,
    kernel_size: int | Sequence[int] = 3,
    dilation: int | Sequence[int] = 1,
    bias: jax.Array | None = None,
    groups: int = 1,
    *,
    capacity: int | None = None,
    **requests: Any,
) -> Voxels:
    """Convolve at those voxels whose coordinates their own stride divides.

    A voxel u with stride s(u) is an output where s(u) divides all its coordinates; there the
    numbers are those of the submanifold convolution. Strides that are powers of two make sets that
    nest. Dense grids go by ``vx.Voxels.from_dense`` with a mask of ones.

    Args:
      voxels: input, ``C_in`` channels.
      weight: ``[K, C_in, C_out]`` or, with groups, ``[K, G, C_in/G, C_out/G]``.
      stride: ``int[capacity]``, 1 or more; below 1 a voxel is no output. It decides only: no
        gradient flows to where it came from.
      kernel_size, dilation: integers, or one per axis.
      bias: ``[C_out]`` or None.
      groups: number of channel groups.
      capacity: static rows of the result; None buckets eagerly, takes the input's under
        ``jax.jit``.
      requests: ``fwd_algo``, ``bwd_algo``, ``dgrad_algo``, ``wgrad_algo``, ``precision`` of
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels on the input's own lattice, ``C_out`` channels.

    Raises:
      InputError: shapes or dtypes that do not fit.
      CapacityError: eager, and the outputs do not fit. Traced, lost ones are counted in
        ``num_dropped``.
    """
    stride = jnp.asarray(stride)
    if stride.shape != (voxels.capacity,) or not jnp.issubdtype(stride.dtype, jnp.integer):
        raise InputError(
            f"stride of {stride.dtype}{list(stride.shape)}: expected int[{voxels.capacity}], one "
            "for each row of the voxels"
        )
    step = jnp.maximum(stride.astype(jnp.int32), 1)[:, None]
    keep = (stride > 0) & jnp.all(jnp.mod(voxels.coords[:, 1:], step) == 0, axis=1)
    out = prune(voxels, keep, capacity=capacity)
    return spatially_sparse_conv(
        voxels,
        weight,
        kernel_size,
        dilation=dilation,
        bias=bias,
        groups=groups,
        out_voxels=out,
        **requests,
    )
