"""Entering the products from a kernel map: views, precision, requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.algorithms import Product, WeightKind
from voxax.geometry import KernelMap
from voxax.products.layer import Layer, problem_of
from voxax.products.primitives import forward_p
from voxax.tuning import (
    Request,
    Resolved,
    at_hand,
    autotune_mode,
    hardware_of,
    resolve,
    target_platform,
    views_of,
)
from voxax.tuning.key import density_bucket

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
      features: ``[kernel_map.feature_rows, C_in]``.
      weight: ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]`` or, depthwise, ``[K, C]``.
      kernel_map: the relation.
      fwd_algo, dgrad_algo, wgrad_algo: requests; None admits every algorithm.
      precision: None follows ``jax.default_matmul_precision`` where set, else keeps the
        full precision of the input dtype.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight; int32 where
      that is an integer of 8 or 16 bits.
    """
    features, kernel_map = kernel_map.with_halo(features)
    dtype = jnp.promote_types(features.dtype, weight.dtype)
    kind = _KINDS[weight.ndim]
    requests: tuple[tuple[Product, Resolved], ...] = (
        ("forward", resolve(fwd_algo, kind=kind, product="forward")),
        ("dgrad", resolve(dgrad_algo, kind=kind, product="dgrad")),
        ("wgrad", resolve(wgrad_algo, kind=kind, product="wgrad")),
    )
    tunes = autotune_mode() != "off"
    layer = Layer(
        kernel_map.in_capacity,
        kernel_map.out_capacity,
        kernel_map.num_offsets,
        kernel_map.symmetric,
        (),
        kind,
        weight.shape[1] if kind == "grouped" else 1,
        precision_name(precision),
        requests,
        kernel_map.spec,
        kernel_map.in_geometry.stride,
        _density(kernel_map) if tunes else None,
    )
    names = _view_names(layer, dtype, weight.shape, every=tunes)
    layer = dataclasses.replace(layer, view_names=names)
    views = {name: kernel_map.view(name) for name in names}
    if layer.density is not None:
        at_hand.note(at_hand.map_key(layer), views)
    operands = _compat.vary_alike(features.astype(dtype), weight.astype(dtype), *views.values())
    return forward_p.bind(*operands, layer=layer)


def _view_names(
    layer: Layer, dtype: Any, weight_shape: tuple[int, ...], every: bool
) -> tuple[str, ...]:
    """The arrays of the map that the three products may read."""
    c_in, c_out = layer.channels(weight_shape)
    x = jax.ShapeDtypeStruct((layer.in_capacity, c_in), dtype)
    dy = jax.ShapeDtypeStruct((layer.out_capacity, c_out), dtype)
    w = jax.ShapeDtypeStruct(weight_shape, dtype)
    operands: dict[Product, tuple[Any, Any]] = {
        "forward": (x, w),
        "dgrad": (dy, w),
        "wgrad": (x, dy),
    }
    platform = target_platform()
    problems = [
        (problem_of(product, platform, *operands[product], layer), names)
        for product, names in layer.requests
    ]
    return views_of(problems, hardware_of(platform)[0], every)


def _density(kernel_map: KernelMap) -> float | None:
    """Bucketed pairs per output row of a concrete map, counted once; None of a traced one."""
    neighbors = kernel_map.view("neighbors")
    if _compat.is_traced(neighbors) or not getattr(neighbors, "is_fully_addressable", True):
        return None

    def count() -> float:
        return density_bucket(*map(int, _pairs_and_rows(neighbors)))

    return kernel_map.memo.get_or_build(("density",), neighbors, count)


@jax.jit
def _pairs_and_rows(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pairs, and the output rows that have any. On the device: the table is large."""
    found = neighbors >= 0
    return jnp.sum(found, dtype=jnp.int32), jnp.sum(jnp.any(found, axis=1), dtype=jnp.int32)


def precision_name(precision: jax.lax.PrecisionLike) -> str:
    """The name that problems keep; see :func:`convolve`."""
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
