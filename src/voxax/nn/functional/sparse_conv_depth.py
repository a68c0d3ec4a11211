"""Sparse depthwise convolution: one filter for each channel."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import jax

from voxax import _compat
from voxax._array_types import Array, Num
from voxax.errors import InputError, check_whole
from voxax.geometry import KernelMap, KernelShape, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.nn.arguments import by_product, output_voxels, request_map
from voxax.products import convolve
from voxax.tuning import Request


class SPARSE_DEPTHWISE_CONV_FWD_ALGO_MODE(enum.StrEnum):
    """Names of algorithms for ``fwd_algo=`` of depthwise convolutions; each equals its string."""

    EXPLICIT = "explicit"
    IMPLICIT = "implicit"
    AUTO = "auto"
    ALL = "all"


SPARSE_DEPTHWISE_CONV_BWD_ALGO_MODE = SPARSE_DEPTHWISE_CONV_FWD_ALGO_MODE
"""Names of algorithms for ``bwd_algo=``, the same as for ``fwd_algo=``."""


@checked_operator
def spatially_sparse_depthwise_conv(
    features: Num[Array, "in_capacity C"],
    depthwise_weight: Num[Array, "K C"],
    kernel_map: KernelMap,
    num_out_coords: int | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> Num[Array, "out_capacity C"]:
    """Convolve depthwise: ``y[m, c] = sum_k features[neighbors[m, k], c] * weight[k, c]``.

    Args:
      features: ``[in_capacity, C]``.
      depthwise_weight: ``[K, C]``.
      kernel_map: from :func:`voxax.kernel_map`, with the input row of each output and tap.
      num_out_coords: number to compare with the map, or None. It must be the map's output capacity
        or, in eager calls, its number of output voxels. The result has ``out_capacity`` rows in any
        case.
      fwd_algo, bwd_algo: requests as in :func:`voxax.nn.functional.spatially_sparse_conv`, for
        the depthwise algorithms ``explicit`` and ``implicit`` (or with ``_gemm`` appended).
      precision: see :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      ``[out_capacity, C]``.

    Raises:
      InputError: shapes do not match the map.
      AlgorithmError: a request is unknown, or none of the allowed algorithms can run this.

    Examples:
      >>> kmap = vx.kernel_map(voxels, kernel_size=3)
      >>> y = functional.spatially_sparse_depthwise_conv(voxels.features, jnp.ones((27, 4)), kmap)
      >>> y.shape == voxels.features.shape
      True
    """
    rows, taps = kernel_map.feature_rows, kernel_map.num_offsets
    if features.ndim != 2 or features.shape[0] != rows:
        raise InputError(f"features of shape {features.shape}: the map expects [{rows}, C]")
    if depthwise_weight.shape != (taps, features.shape[1]):
        axes, channels = depthwise_weight.shape[:-1], features.shape[1]
        dense = len(axes) > 1 and math.prod(axes) == taps
        hint = f"; depthwise_weight.reshape({taps}, {channels}) has it" if dense else ""
        raise InputError(
            f"depthwise_weight of shape {tuple(depthwise_weight.shape)}: expected "
            f"[{taps}, {channels}]{hint}"
        )
    if num_out_coords is not None:
        _check_outputs(num_out_coords, kernel_map)
    with jax.named_scope("spatially_sparse_depthwise_conv"):
        return convolve(
            features,
            depthwise_weight,
            kernel_map,
            **by_product(fwd_algo, bwd_algo),
            precision=precision,
        )


def _check_outputs(number: int, kernel_map: KernelMap) -> None:
    """Raise :class:`InputError` unless ``number`` is the map's output capacity or voxel count.

    Under ``jax.jit`` the number of output voxels is unknown, so only the capacity is accepted.
    """
    rows, count = kernel_map.out_capacity, kernel_map.out_geometry.count
    known = int(count) if _compat.is_readable(count) else None
    number = check_whole("num_out_coords", number, 0)
    if number not in (rows, known):
        voxels = "unknown here, under jax.jit" if known is None else known
        raise InputError(
            f"num_out_coords={number}: the map's output capacity is {rows}, its number of output "
            f"voxels {voxels}. Give one of the two, or leave it out"
        )


@checked_operator
def depthwise_conv(
    voxels: Voxels,
    depthwise_weight: Num[Array, "K C"],
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    bias: Num[Array, " C"] | None = None,
    *,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> Voxels:
    """Convolve Voxels with one filter for each channel, and return Voxels.

    Args:
      voxels: input with ``C`` channels.
      depthwise_weight: ``[K, C]``, with K taps.
      bias: ``[C]`` or None.
      kernel_size, stride, dilation, transposed, generative, out_voxels, capacity, kernel_map,
        kernel_shape, spatial_shape, precision: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.
      fwd_algo, bwd_algo: as in :func:`spatially_sparse_depthwise_conv`.

    Raises:
      InputError, CapacityError, AlgorithmError: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Examples:
      >>> functional.depthwise_conv(voxels, jnp.ones((27, 4)), kernel_size=3).num_channels
      4
    """
    relation = (kernel_size, stride, dilation, transposed, generative)
    target = (out_voxels, capacity, kernel_map, kernel_shape, spatial_shape)
    kmap = request_map(voxels, *relation, *target)
    features = spatially_sparse_depthwise_conv(
        voxels.features,
        depthwise_weight,
        kmap,
        fwd_algo=fwd_algo,
        bwd_algo=bwd_algo,
        precision=precision,
    )
    return output_voxels(voxels, kmap, features, out_voxels, bias)
