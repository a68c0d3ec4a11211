"""A shared kernel whose taps are weighted by how alike the guide is there."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from voxax.geometry.dtypes import accumulator
from voxax.nn.functional.dynamic_conv import check_operands, flat, with_bias
from voxax.nn.functional.grid_taps import Shifted, check_shape, grid_spec, scan_taps, zeros_of
from voxax.products.convolve import precision_name


def pixel_adaptive_conv(
    x: jax.Array,
    guide: jax.Array,
    weight: jax.Array,
    *,
    bias: jax.Array | None = None,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    normalize: bool = False,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Convolve with ``exp(-|guide[p] - guide[q]|^2 / 2)`` times a shared kernel.

    ``y[u] = sum over k of exp(-|g[p] - g[q_k]|^2 / 2) W_k x[q_k] + b`` with ``p = stride u`` and
    ``q_k = p + dilation o_k``, zero outside of the grid. Scale the guide to make the affinity
    narrower. A constant guide gives the ordinary convolution; a weight of ones at ``C = C_out = 1``
    and ``normalize`` a bilateral filter.

    Args:
      x: ``[B, *spatial, C]``, 1 to 3 spatial axes, floating point.
      guide: ``[B, *spatial, F]``, floating point.
      weight: ``[*T, C, C_out]``.
      bias: ``[C_out]`` or None.
      stride, dilation: static, an integer or one per axis.
      normalize: divide each position's affinities by their sum over the taps inside of the grid.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).

    Returns:
      ``[B, *outputs, C_out]`` in the promoted dtype of ``x`` and ``weight``, accumulated in at
      least float32. Differentiable in every array to any order. One tap after the other: memory
      does not grow with their number.

    Raises:
      InputError: shapes or dtypes that do not fit.

    Source: Su et al., "Pixel-Adaptive Convolutional Neural Networks", CVPR 2019.
    """
    taps = check_operands(x, weight, None)
    spec = grid_spec(x, taps, stride, dilation)
    features = guide.shape[-1] if guide.ndim else 0
    check_shape("guide", guide, (*x.shape[:-1], features))
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    wide = accumulator(dtype)
    values = Shifted(x.astype(dtype), spec)
    # One channel more, of ones: zero where a tap is outside of the grid.
    marked = jnp.concatenate([guide.astype(wide), jnp.ones((*x.shape[:-1], 1), wide)], axis=-1)
    guides = Shifted(marked, spec)
    centre = guide.astype(wide)[(slice(None), *(slice(None, None, s) for s in spec.stride))]
    options = {"precision": precision_name(precision), "preferred_element_type": wide}

    def add(carry: tuple, tap: tuple[jax.Array, ...]) -> tuple:
        total, sum_of_affinities = carry
        start, guide_start, w = tap
        near = guides.at(guide_start)
        apart = jnp.sum((near[..., :-1] - centre) ** 2, axis=-1)
        affinity = jnp.exp(-apart / 2) * near[..., -1]
        scaled = values.at(start) * affinity[..., None].astype(dtype)
        product = jnp.matmul(scaled, w, **options)
        return total + product, sum_of_affinities + affinity

    outputs = values.outputs
    start = (
        zeros_of((*outputs, weight.shape[-1]), wide, x, weight, guide),
        zeros_of(outputs, wide, x, weight, guide),
    )
    by_tap = (
        jnp.asarray(values.starts),
        jnp.asarray(guides.starts),
        flat(weight.astype(dtype), taps),
    )
    total, sum_of_affinities = scan_taps(add, start, by_tap)
    if normalize:
        # The centre is inside: the sum is at least 1.
        total = total / sum_of_affinities[..., None]
    y = total.astype(dtype)
    return y if bias is None else with_bias(y, bias)
