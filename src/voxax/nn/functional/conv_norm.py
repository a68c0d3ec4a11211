"""A convolution with what follows it in inference, as one product: GPUs have one kernel for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax.geometry import Voxels, result_geometry
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import common_dtype
from voxax.geometry.row_operations import clear_rows
from voxax.kernels import Epilogue
from voxax.nn.arguments import add_bias, check_weight, request_map
from voxax.nn.functional.batch_norm import batch_norm
from voxax.nn.functional.normalization import with_cleared_features
from voxax.products import convolve_with_epilogue
from voxax.tuning import Request


@checked_operator
def conv_norm(
    voxels: Voxels,
    weight: jax.Array,
    affine: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    kernel_size: Any = 3,
    stride: Any = 1,
    *,
    epsilon: float,
    relu: bool,
    bias: jax.Array | None = None,
    groups: int = 1,
    residual: Voxels | None = None,
    out_voxels: Voxels | None = None,
    precision: jax.lax.PrecisionLike = None,
    requests: dict[str, Request],
    **relation: Any,
) -> Voxels | None:
    """Convolve, normalize by known statistics, add ``residual``, cut off below 0 with ``relu``.

    Args:
      affine: mean, variance, scale and bias of the normalization, ``[C_out]`` each.
      epsilon: added to the variance.
      residual: voxels whose features are added.
      requests: algorithms, as :func:`voxax.products.convolve` takes them.
      voxels, weight, kernel_size, stride, bias, groups, out_voxels, precision, relation: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.

    Returns:
      Voxels; None where the features are no floats, or the residual's cannot be added as they are.
    """
    kernel_map = request_map(voxels, kernel_size, stride, out_voxels=out_voxels, **relation)
    check_weight(weight, kernel_map, voxels.num_channels, groups)
    target = None if out_voxels is None else out_voxels.geometry
    geometry = result_geometry(kernel_map, voxels.geometry, target)
    dtype = common_dtype(voxels.features.dtype, weight.dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    added = None if residual is None else residual.features
    if residual is not None and added is not None:
        shape = kernel_map.out_capacity, affine[0].shape[0]
        if residual.geometry is not geometry or (added.shape, added.dtype) != (shape, dtype):
            return None
    mean, variance, scale, shift = affine
    epilogue = Epilogue(
        geometry.valid, mean, variance, scale, shift, bias, added, float(epsilon), relu
    )
    with jax.named_scope("spatially_sparse_conv"):
        features = convolve_with_epilogue(
            voxels.features, weight, kernel_map, epilogue, _after, precision=precision, **requests
        )
    return with_cleared_features(dataclasses.replace(voxels, geometry=geometry), features)


def _after(y: jax.Array, epilogue: Epilogue) -> jax.Array:
    """Return ``y`` after bias, batch norm, residual and ReLU, each where it is given."""
    e = epilogue
    if e.bias is not None:
        y = clear_rows(add_bias(y, e.bias), e.valid)
    affine = e.mean, e.variance, e.scale, e.shift
    options = {"epsilon": e.epsilon, "residual": e.residual, "relu": e.relu}
    return batch_norm(y, e.valid, *affine, training=False, **options).features
