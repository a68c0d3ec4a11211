"""Entering the products from a kernel map: views, precision, requests."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from voxax.algorithms import lookup
from voxax.algorithms.base import Product, WeightKind
from voxax.geometry import KernelMap
from voxax.products.primitives import Layer, forward_p
from voxax.tuning import Request, Resolved, resolve

_KINDS: dict[int, WeightKind] = {2: "depthwise", 3: "dense", 4: "grouped"}


def convolve(
    features: jax.Array,
    weight: jax.Array,
    kernel_map: KernelMap,
    *,
    fwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``y[m] = sum_k features[neighbors[m, k]] @ weight[k]``.

    Args:
      features: ``[in_capacity, C_in]``.
      weight: ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]`` or, depthwise, ``[K, C]``.
      kernel_map: the relation.
      fwd_algo, dgrad_algo, wgrad_algo: requests; None admits every algorithm.
      precision: None follows ``jax.default_matmul_precision`` where set, else keeps the
        full precision of the input dtype.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight.
    """
    dtype = jnp.promote_types(features.dtype, weight.dtype)
    kind = _KINDS[weight.ndim]
    requests: tuple[tuple[Product, Resolved], ...] = (
        ("forward", resolve(fwd_algo)),
        ("dgrad", resolve(dgrad_algo)),
        ("wgrad", resolve(wgrad_algo)),
    )
    admitted = {name for _, names in requests for name in names}
    names = sorted({v for name in admitted for v in lookup(name).prepare(kernel_map)})
    layer = Layer(
        kernel_map.in_capacity,
        kernel_map.out_capacity,
        kernel_map.num_offsets,
        kernel_map.symmetric,
        tuple(names),
        kind,
        weight.shape[1] if kind == "grouped" else 1,
        _precision_name(precision),
        requests,
    )
    views = [kernel_map.view(name) for name in names]
    return forward_p.bind(features.astype(dtype), weight.astype(dtype), *views, layer=layer)


def _precision_name(precision: jax.lax.PrecisionLike) -> str:
    if precision is None:
        return getattr(jax.config, "jax_default_matmul_precision", None) or "highest"
    if isinstance(precision, str):
        return precision
    if isinstance(precision, jax.lax.Precision):
        return precision.name.lower()
    raise TypeError(
        f"precision={precision!r}: give a jax.lax.Precision or its name ('default', 'high', "
        "'highest'); both operands share one precision"
    )
