"""Spatially sparse convolution."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry import KernelMap, Voxels, result_geometry
from voxax.nn.functional.checks import check_weight, request_map
from voxax.products import convolve
from voxax.tuning import Request


class SPARSE_CONV_FWD_ALGO_MODE(enum.StrEnum):
    """Names of the forward algorithms, for users who pin by enum."""

    EXPLICIT_GEMM = "explicit_gemm"
    AUTO = "auto"


class SPARSE_CONV_BWD_ALGO_MODE(enum.StrEnum):
    """Names of the backward algorithms; the same list."""

    EXPLICIT_GEMM = "explicit_gemm"
    AUTO = "auto"


def spatially_sparse_conv(
    voxels: Voxels,
    weight: jax.Array,
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    bias: jax.Array | None = None,
    groups: int = 1,
    *,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> Voxels:
    """Convolve on the voxels that exist.

    ``weight[k]`` multiplies the input at ``out * stride + offset[k] * dilation``: the numbers
    of ``jax.lax.conv_general_dilated`` on the densified grid, at the active outputs. Kernel
    of size k covers offsets ``-((k-1)//2)`` to ``k//2``, or ``0`` to ``k-1`` when
    ``stride == k``. Stride 1 keeps the voxels (submanifold convolution, Graham et al. 2018);
    stride s leads to ``unique(floor(coords / s))``.

    Args:
      voxels: input, ``C_in`` channels.
      weight: ``[K, C_in, C_out]``, or ``[K, G, C_in/G, C_out/G]`` with ``groups=G``; K in
        lexicographic order, last axis fastest (a dense kernel, flattened).
      kernel_size, stride, dilation: integers, or one per axis.
      bias: ``[C_out]`` or None.
      groups: number of channel groups.
      transposed: run the adjoint relation, onto ``out_voxels``.
      generative: output every site that a tap reaches.
      out_voxels: the voxels to produce, where the arguments do not determine them.
      capacity: static rows of a new output set; None takes the plan's, else the input's.
      kernel_map: a map built before; excludes all arguments that describe one.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo: algorithm requests (a name, an enum
        member, a list, ``"auto"`` or None); ``bwd_algo`` stands for both of the last two.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      Voxels with ``C_out`` channels in the promoted dtype, accumulated in at least float32.

    Raises:
      InputError: shapes that do not fit, a transposed convolution without a target.
      CapacityError: eager, and the outputs do not fit.
      AlgorithmError: unknown name, or no admitted algorithm can run this.
    """
    kmap = request_map(
        voxels,
        kernel_size,
        stride,
        dilation,
        transposed,
        generative,
        out_voxels,
        capacity,
        kernel_map,
    )
    check_weight(weight, kmap, voxels.num_channels, groups)
    features = convolve(
        voxels.features,
        weight,
        kmap,
        fwd_algo=fwd_algo,
        dgrad_algo=dgrad_algo if dgrad_algo is not None else bwd_algo,
        wgrad_algo=wgrad_algo if wgrad_algo is not None else bwd_algo,
        precision=precision,
    )
    if bias is not None:
        if bias.shape != (features.shape[1],):
            raise InputError(
                f"bias of shape {bias.shape} for {features.shape[1]} output channels: expected "
                f"[{features.shape[1]}]"
            )
        features = features + bias.astype(features.dtype)[None, :]
    target = None if out_voxels is None else out_voxels.geometry
    geometry = result_geometry(kmap, voxels.geometry, target)
    out = dataclasses.replace(voxels, geometry=geometry, features=features)
    return out.map(jnp.asarray) if bias is not None else out
