"""Entering the products from a grid and the sizes of its kernels."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.algorithms import Product
from voxax.algorithms.dynamic.grid import output_grid
from voxax.algorithms.dynamic.grouped import prefix_of
from voxax.coords import box_offsets
from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.geometry.kernel_spec import LONGEST_REACH
from voxax.geometry.nested_sizes import reaching_size, taps_within
from voxax.products.convolve import precision_name
from voxax.products.layer import Layer
from voxax.products.primitives import forward_p
from voxax.tuning import Request, Resolved, at_hand, autotune_mode, resolve
from voxax.tuning.key import density_bucket

_TILE = 16


def sized_spec(
    shape: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> KernelSpec:
    """The relation of the largest kernel. Unlike :meth:`KernelSpec.make`, sizes nest whatever the
    stride is: a size equal to the stride is centred like any other.

    Raises:
      InputError: taps or strides beyond 2**28, as there.
    """
    offsets = box_offsets(shape, (0,) * len(shape))
    reach = max(n // 2 * d for n, d in zip(shape, dilation, strict=True))
    if max(reach, *stride) > LONGEST_REACH:
        raise InputError(
            f"a kernel that reaches {reach} cells with stride {stride}: both are limited to "
            f"2**28 = {LONGEST_REACH}, so that 32-bit places cannot wrap around"
        )
    return KernelSpec(tuple(map(tuple, np.asarray(offsets).tolist())), stride, dilation)


def convolve_sized(
    x: jax.Array,
    weight: jax.Array,
    sizes: jax.Array,
    spec: KernelSpec,
    *,
    method: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``y[u] = sum over taps k of sizes[u] of x[u * stride + offset_k * dilation] @ weight[k]``.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, taps as in ``spec``.
      sizes: ``int32[B, *outputs]``.
      spec: offsets, stride and dilation.
      method: a request among the strategies, for all three products.
      precision: as for :func:`voxax.products.convolve`.

    Returns:
      ``[B, *outputs, C_out]``.
    """
    dtype = jnp.promote_types(x.dtype, weight.dtype)
    requests: tuple[tuple[Product, Resolved], ...] = (
        ("forward", resolve(method, kind="dynamic", product="forward")),
        ("dgrad", resolve(method, kind="dynamic", product="dgrad")),
        ("wgrad", resolve(method, kind="dynamic", product="wgrad")),
    )
    grid = x.shape[:-1]
    outputs = output_grid(grid, spec.stride)
    if not (math.prod(grid) and weight.size):
        return jnp.zeros((*outputs, weight.shape[-1]), dtype)
    layer = Layer(
        math.prod(grid),
        math.prod(outputs),
        spec.num_offsets,
        False,
        ("sizes",),
        "dynamic",
        1,
        precision_name(precision),
        requests,
        spec,
        grid=grid,
    )
    pinned = any(names == ("specialised",) for _, names in requests)
    is_open = any(len(names) > 1 for _, names in requests)
    known = not _compat.is_traced(sizes) and getattr(sizes, "is_fully_addressable", True)
    if known and (pinned or (autotune_mode() != "off" and is_open)):
        layer = _counted(layer, np.asarray(sizes), pinned)
    flat = sizes.reshape(-1)
    if layer.density is not None:
        # Known sizes that are reshaped in a trace are no longer known.
        at_hand.note(at_hand.map_key(layer), {"sizes": sizes if _compat.is_traced(flat) else flat})
    operands = _compat.vary_alike(
        x.reshape(-1, x.shape[-1]).astype(dtype), weight.astype(dtype), flat
    )
    out = forward_p.bind(*operands, layer=layer)
    return out.reshape(*outputs, -1)


def densities(of: Any, sizes: np.ndarray) -> dict[str, float]:
    """How many taps a layer or problem has with these sizes, and how smooth they are."""
    counts, sizes = taps_within(np.asarray(of.spec.offsets)), np.asarray(sizes)
    taps = counts[np.clip(sizes, 0, len(counts) - 1)].reshape(output_grid(of.grid, of.spec.stride))
    return {
        "density": density_bucket(int(taps.sum()), taps.size),
        "tile_density": density_bucket(int(_by_tiles(taps).sum()), taps.size),
    }


def _counted(layer: Layer, sizes: np.ndarray, specialise: bool) -> Layer:
    """The layer with what is known of its sizes."""
    layer = dataclasses.replace(layer, **densities(layer, sizes))
    if not specialise or layer.spec is None:
        return layer
    largest = int(reaching_size(np.asarray(layer.spec.offsets)).max())
    at_least = [int((sizes >= size).sum()) for size in range(largest + 1)]
    return dataclasses.replace(layer, prefix=prefix_of([sizes.size, *at_least[1:]], sizes.size))


def _by_tiles(taps: np.ndarray) -> np.ndarray:
    """Every position with the most taps in its tile."""
    for axis in range(1, taps.ndim):
        starts = np.arange(0, taps.shape[axis], _TILE)
        if len(starts):
            most = np.maximum.reduceat(taps, starts, axis=axis)
            taps = np.repeat(most, _TILE, axis=axis).take(np.arange(taps.shape[axis]), axis=axis)
    return taps


def largest_size(shape: tuple[int, ...]) -> int:
    """The size that has every tap of a kernel of this shape."""
    return int(reaching_size(np.asarray(box_offsets(shape, (0,) * len(shape)))).max())
