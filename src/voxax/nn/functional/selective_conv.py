"""Branches of several kernels, and for each scene and channel a softmax over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.nn.functional.dynamic_conv import check_operands, with_bias
from voxax.nn.functional.grid_conv import grid_conv
from voxax.nn.functional.grid_taps import check_shape


def selective_conv(
    x: jax.Array,
    weights: Sequence[jax.Array],
    select: Callable[[jax.Array], jax.Array] | jax.Array,
    *,
    biases: Sequence[jax.Array] | None = None,
    stride: int | Sequence[int] = 1,
    dilations: Sequence[int | Sequence[int]] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """A kernel size for each scene and channel, chosen softly from what all sizes see.

    Every branch is an ordinary convolution; the mean over positions of their sum, ``[B, C_out]``,
    goes to ``select``, whose scores a softmax over branches turns into the share of each.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      weights: M kernels ``[*T_m, C, C_out]`` of any sizes.
      select: ``float[B, C_out] -> float[B, M, C_out]``, or these scores themselves.
      biases: M of ``[C_out]``, added to the branches before they are selected from.
      stride: static, an integer or one per axis.
      dilations: of each branch; a 3 x 3 kernel of dilation 2 is the usual branch of 5 x 5.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *ceil(spatial / stride), C_out]`` in the promoted dtype of ``x`` and the weights.
      Differentiable in every array to any order.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: Li et al., "Selective Kernel Networks", CVPR 2019. Its batch normalisation and
    activations belong to the caller: into ``select``, or behind.
    """
    if not weights:
        raise InputError("selective_conv needs at least one weight, got none")
    dilations = (1,) * len(weights) if dilations is None else tuple(dilations)
    for name, given in (("dilations", dilations), ("biases", biases)):
        if given is not None and len(given) != len(weights):
            raise InputError(f"{len(given)} {name} for {len(weights)} weights: give one for each")
    branches = []
    for number, (weight, dilation) in enumerate(zip(weights, dilations, strict=True)):
        check_operands(x, weight, None)
        if weight.shape[-1] != weights[0].shape[-1]:
            raise InputError(
                f"weights with {weights[0].shape[-1]} and {weight.shape[-1]} output channels: "
                "branches are added, all need the same"
            )
        dtype = jnp.promote_types(x.dtype, weight.dtype)
        y = grid_conv(
            x.astype(dtype),
            weight.astype(dtype),
            stride=stride,
            dilation=dilation,
            precision=precision,
        )
        branches.append(y if biases is None else with_bias(y, biases[number]))
    wide = accumulator(branches[0].dtype)
    outputs, channels = branches[0].shape[:-1], branches[0].shape[-1]
    if callable(select):
        total = branches[0].astype(wide)
        for y in branches[1:]:
            total = total + y.astype(wide)
        pooled = jnp.mean(total, axis=tuple(range(1, total.ndim - 1)))
        scores = select(pooled.astype(branches[0].dtype))
    else:
        scores = jnp.asarray(select)
    check_shape("scores", scores, (outputs[0], len(branches), channels))
    shares = jax.nn.softmax(scores.astype(wide), axis=1)
    lead = (outputs[0], *(1,) * (len(outputs) - 1), channels)
    mixed = None
    for number, y in enumerate(branches):
        part = y.astype(wide) * shares[:, number].reshape(lead)
        mixed = part if mixed is None else mixed + part
    assert mixed is not None
    return mixed.astype(branches[0].dtype)
