"""A convolution whose pairs each carry a factor: ``y[m] = sum_k f[m, k] x[neighbors[m, k]] w[k]``.

Linear in three operands, so none of the three bilinear products. But of one tap the factor belongs
to the output row: ``y = sum_k f[:, k] * (A_k x w[k])`` is a sum of products over maps of one tap,
each scaled, which brings their differentiation rule and algorithms along. A loop over taps, so one
program for any number; for derivatives each tap's product is computed again instead of kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax.geometry import KernelMap
from voxax.geometry.dtypes import accumulator
from voxax.products.convolve import convolve


def convolve_modulated(
    features: jax.Array,
    weight: jax.Array,
    factors: jax.Array,
    kernel_map: KernelMap,
    **options: Any,
) -> jax.Array:
    """``y[m] = sum_k factors[m, k] * features[neighbors[m, k]] @ weight[k]``.

    Args:
      features: ``[kernel_map.feature_rows, C_in]``.
      weight: ``[K, C_in, C_out]`` or ``[K, G, C_in/G, C_out/G]``.
      factors: ``[out_capacity, K]``, floating-point; read only where the map has a pair.
      kernel_map: the relation.
      options: requests and precision of :func:`voxax.products.convolve`.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight; factors are applied,
      and taps added, in at least float32.
    """
    features, kernel_map = kernel_map.with_halo(features)
    dtype = jnp.promote_types(features.dtype, weight.dtype)
    wide, neighbors = accumulator(dtype), kernel_map.neighbors
    # Whatever stands where there is no pair, NaN included, reaches no result and no gradient.
    scale = jnp.where(neighbors >= 0, factors, jnp.zeros((), factors.dtype)).astype(wide)
    # Every tap goes by the name of the first: which one it is decides nothing but how full it is.
    spec = dataclasses.replace(kernel_map.spec, offsets=kernel_map.spec.offsets[:1])

    def tap(
        total: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        rows, w, factor = step
        views = {"neighbors": rows[:, None]}
        one = KernelMap(kernel_map.in_geometry, kernel_map.out_geometry, spec, views, True)
        part = convolve(features, w[None], one, **options).astype(wide)
        return total + part * factor[:, None], None

    channels = weight.shape[-1] * (weight.shape[1] if weight.ndim == 4 else 1)
    # A sum of no rows is zero; it makes the carry vary over a mesh as features do.
    start = jnp.zeros((len(neighbors), channels), wide) + jnp.sum(features[:0]).astype(wide)
    total, _ = jax.lax.scan(jax.checkpoint(tap), start, (neighbors.T, weight, scale.T))
    return total.astype(dtype)
