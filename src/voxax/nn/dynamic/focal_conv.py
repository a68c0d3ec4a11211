"""Focal convolution: a sparse convolution that adds voxels around important voxels."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax._array_types import Array, Float, Num
from voxax.errors import InputError
from voxax.geometry import KernelSpec, Voxels, add_sites
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import fraction_dtype, wide_fraction
from voxax.nn.arguments import by_product, convolve_voxels, request_map
from voxax.tuning import Request


@checked_operator
def focal_conv(
    voxels: Voxels,
    weight: Num[Array, "K C_in C_out"] | Num[Array, "K G C_in_per_G C_out_per_G"],
    importance: Float[Array, "capacity K"],
    kernel_size: int | Sequence[int] = 3,
    dilation: int | Sequence[int] = 1,
    bias: Num[Array, " C_out"] | None = None,
    groups: int = 1,
    *,
    threshold: float | Num[Array, ""] = 0.5,
    gate: bool = True,
    capacity: int | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> Voxels:
    """Convolve onto the input voxels and onto new voxels next to important input voxels.

    A voxel is important if its importance at the kernel's center tap exceeds the threshold. For
    each tap k of an important voxel whose ``importance[row, k]`` exceeds the threshold too, a voxel
    is added at ``coords[row] + offset[k] * dilation`` if there is none. A threshold of 1 adds no
    voxel (submanifold convolution); a threshold below 0 adds all neighbors.

    Args:
      voxels: input with ``C_in`` channels.
      weight: ``[K, C_in, C_out]`` or, with groups, ``[K, G, C_in/G, C_out/G]``.
      importance: ``float[capacity, K]``, usually the sigmoid of a submanifold convolution with K
        outputs; taps in lexicographic order, the center among them.
      kernel_size, dilation: integers, or one per axis; the stride is 1.
      bias: ``[C_out]`` or None.
      groups: number of channel groups.
      threshold: importance above which a voxel or tap is important; may be traced.
      gate: whether to multiply each voxel's features by its importance at the center before the
        convolution, which gives this importance a gradient. The importance of other taps has no
        gradient; the paper trains it with a separate loss.
      capacity: static number of rows of the result. None takes one of a few standard sizes in eager
        calls, and K + 1 times the input's under ``jax.jit``, which suffices but is usually far too
        large.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo, precision: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels with ``C_out`` channels; dtypes as in
      :func:`voxax.nn.functional.spatially_sparse_conv`.

    Raises:
      InputError: shapes or dtypes differ from those above.
      CapacityError: the result has more rows than ``capacity``; only in eager calls. Under
        ``jax.jit`` the result counts the lost voxels in ``num_dropped``.

    Source: Chen et al., "Focal Sparse Convolutional Networks for 3D Object Detection", CVPR 2022.
    """
    spec = KernelSpec.make(voxels.geometry.ndim, kernel_size, dilation=dilation)
    expected = (voxels.capacity, spec.num_offsets)
    if importance.shape != expected or not jnp.issubdtype(importance.dtype, jnp.floating):
        raise InputError(
            f"importance of {importance.dtype}{list(importance.shape)}: expected "
            f"float{list(expected)}, one for each row and tap"
        )
    center = spec.offsets.index((0,) * len(spec.stride))
    own = jnp.where(voxels.valid, importance[:, center], jnp.zeros((), importance.dtype))
    hard = jax.lax.stop_gradient(importance)
    keep = (hard > threshold) & (hard[:, center : center + 1] > threshold)
    offsets = tuple(map(tuple, np.asarray(spec.dilated_offsets).tolist()))
    out = add_sites(voxels, offsets, keep, capacity=capacity)
    if gate:
        dtype = voxels.features.dtype
        wide = wide_fraction(dtype)
        features = voxels.features.astype(wide) * own[:, None].astype(wide)
        voxels = voxels.replace_features(features.astype(fraction_dtype(dtype)))
    kmap = request_map(voxels, kernel_size, 1, dilation, out_voxels=out)
    requests = by_product(fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
    return convolve_voxels(voxels, weight, kmap, bias, groups, out, precision=precision, **requests)
