"""Spatially sparse depthwise convolution."""

from __future__ import annotations

import enum

import jax

from voxax.errors import InputError
from voxax.geometry import KernelMap
from voxax.products import convolve
from voxax.tuning import Request


class SPARSE_DEPTHWISE_CONV_FWD_ALGO_MODE(enum.StrEnum):
    """Names of the depthwise forward algorithms."""

    EXPLICIT_GEMM = "explicit_gemm"
    AUTO = "auto"


class SPARSE_DEPTHWISE_CONV_BWD_ALGO_MODE(enum.StrEnum):
    """Names of the depthwise backward algorithms; the same list."""

    EXPLICIT_GEMM = "explicit_gemm"
    AUTO = "auto"


def spatially_sparse_depthwise_conv(
    features: jax.Array,
    depthwise_weight: jax.Array,
    kernel_map: KernelMap,
    num_out_coords: int | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
) -> jax.Array:
    """One filter per channel: ``y[m, c] = sum_k features[neighbors[m, k], c] * weight[k, c]``.

    Args:
      features: ``[in_capacity, C]``.
      depthwise_weight: ``[K, C]``.
      kernel_map: the relation, from :func:`voxax.kernel_map`.
      num_out_coords: static; must equal the map's output capacity when given.
      fwd_algo, bwd_algo: algorithm requests.

    Returns:
      ``[out_capacity, C]``.

    Raises:
      InputError: shapes that do not fit the map.
    """
    rows, taps = kernel_map.in_capacity, kernel_map.num_offsets
    if features.ndim != 2 or features.shape[0] != rows:
        raise InputError(f"features of shape {features.shape}: the map expects [{rows}, C]")
    if depthwise_weight.shape != (taps, features.shape[1]):
        raise InputError(
            f"depthwise_weight of shape {depthwise_weight.shape}: expected "
            f"[{taps}, {features.shape[1]}]"
        )
    if num_out_coords is not None and num_out_coords != kernel_map.out_capacity:
        raise InputError(
            f"num_out_coords={num_out_coords}, the map has {kernel_map.out_capacity} output rows"
        )
    return convolve(
        features,
        depthwise_weight,
        kernel_map,
        fwd_algo=fwd_algo,
        dgrad_algo=bwd_algo,
        wgrad_algo=bwd_algo,
    )
