"""The ordinary convolution of a dense grid, where an operator needs one beside its dynamic part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.nn.functional.grid_taps import grid_spec, margins
from voxax.products.convolve import output_grid, precision_name


def grid_conv(
    x: jax.Array,
    weight: jax.Array,
    *,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``[B, *ceil(spatial / stride), C_out]``: taps and outputs as in ``dynamic_conv``.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes.
      weight: ``[*T, C / groups, C_out]`` of the dtype of ``x``.
      stride, dilation, groups, precision: static.

    Raises:
      InputError: shapes that do not fit.
    """
    ndim, channels = x.ndim - 2, x.shape[-1]
    fits = weight.ndim == ndim + 2 and weight.shape[-2] * groups == channels
    if not fits or weight.shape[-1] % groups:
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for x of shape {tuple(x.shape)}, "
            f"groups={groups}: expected [*T, {channels} / groups, C_out] with {ndim} sizes T"
        )
    spec = grid_spec(x, weight.shape[:ndim], stride, dilation)
    outputs = output_grid(x.shape[:-1], spec.stride)
    if not math.prod(outputs):
        return jnp.zeros((*outputs, weight.shape[-1]), x.dtype)
    letters = "012"[:ndim]
    return jax.lax.conv_general_dilated(
        x,
        weight,
        spec.stride,
        margins(x.shape[:-1], spec),
        rhs_dilation=spec.dilation,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
        precision=precision_name(precision),
    )
