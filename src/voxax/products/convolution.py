"""Entering the products: from a kernel map, with a factor for each pair, or from a grid of sizes.

Each function resolves the requests and the precision, and binds the forward product with the arrays
of the map that an algorithm may read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _native
from voxax.coords import box_offsets
from voxax.errors import InputError
from voxax.geometry import KernelMap, KernelSpec
from voxax.geometry.dtypes import accumulator, common_dtype
from voxax.geometry.eager import known_on_cpu
from voxax.geometry.kernel_maps import View
from voxax.geometry.kernel_spec import LONGEST_REACH
from voxax.geometry.nested_sizes import reaching_size, taps_within
from voxax.hardware import HardwareInfo, hardware_of, target_platform
from voxax.kernels import Epilogue, Layer, Problem, Product, WeightKind, registry
from voxax.kernels.dynamic.grid import output_grid, tile_maximum
from voxax.kernels.dynamic.grouped import prefix_of
from voxax.kernels.kernel import Uniform
from voxax.kernels.rows import zeros
from voxax.products.primitives import After, choice_for, convolved, eager_key, forward_p
from voxax.tuning import Request, admitted, autotune_mode, views_of
from voxax.tuning.entry import density_bucket
from voxax.tuning.sample import map_key, note_map

_KINDS: dict[int, WeightKind] = {2: "depthwise", 3: "dense", 4: "grouped"}
_TILE = 16  # positions along each axis


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
    algorithms = fwd_algo, dgrad_algo, wgrad_algo
    operands, views, layer = _entered(features, weight, kernel_map, *algorithms, precision)
    return forward_p.bind(*_compat.vary_alike(*operands, *views), layer=layer)


def convolve_with_epilogue(
    features: jax.Array,
    weight: jax.Array,
    kernel_map: KernelMap,
    epilogue: Epilogue,
    after: After,
    *,
    fwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``after(convolve(features, weight, kernel_map), epilogue)``, in one kernel where it can be.

    Derivatives are those of the two, one after the other.

    Args:
      epilogue: what follows the product.
      after: applies it to the product's result, ``[out_capacity, C_out]`` and of that dtype too.
      features, weight, kernel_map, fwd_algo, dgrad_algo, wgrad_algo, precision: as for
        :func:`convolve`, of floating-point numbers.
    """
    algorithms = fwd_algo, dgrad_algo, wgrad_algo
    operands, views, layer = _entered(features, weight, kernel_map, *algorithms, precision)
    return convolved(*operands, views, epilogue, after, layer)


def _entered(
    features: jax.Array,
    weight: jax.Array,
    kernel_map: KernelMap,
    fwd_algo: Request,
    dgrad_algo: Request,
    wgrad_algo: Request,
    precision: jax.lax.PrecisionLike,
) -> tuple[tuple[jax.Array, jax.Array], list[jax.Array], Layer]:
    """Return the operands of :func:`convolve` in one dtype, the map's arrays, and the layer."""
    features, kernel_map = kernel_map.with_halo(features)
    _refuse_symbolic(kernel_map)
    dtype = common_dtype(features.dtype, weight.dtype)
    kind = _KINDS[weight.ndim]
    asked = _asked(kind, fwd_algo, dgrad_algo, wgrad_algo)
    tunes = autotune_mode() != "off"
    layer = Layer(
        in_capacity=kernel_map.in_capacity,
        out_capacity=kernel_map.out_capacity,
        num_offsets=kernel_map.num_offsets,
        symmetric=kernel_map.symmetric,
        kind=kind,
        groups=weight.shape[1] if kind == "grouped" else 1,
        precision=precision_name(precision),
        spec=kernel_map.spec,
        level=kernel_map.in_geometry.stride,
        density=_density(kernel_map) if tunes else None,
        **asked,
    )
    evaluated = _compat.is_evaluated(features, weight) and not _compat.is_mapped(features, weight)
    # Of a mapped call another problem is computed, which the batching rule makes.
    if evaluated and known_on_cpu(kernel_map.view("neighbors")):
        if layer.density is not None:  # the choice may be measured on this map
            note_map(map_key(layer), {"neighbors": kernel_map.view("neighbors")})
        moves = _compat.is_traced(features), _compat.is_traced(weight)
        layer, read = _with_chosen_views(layer, dtype, weight.shape, moves, eager_key())
    else:
        platform = target_platform()
        # A kernel's answer depends on the problem, the hardware, and whether the library is there.
        known = registry.kernels(), _native.unavailable()
        hardware, _ = hardware_of(platform)
        layer, read = _with_views(layer, dtype, weight.shape, tunes, platform, hardware, known)
    views = {name: kernel_map.view(name, view) for name, view in read}
    if layer.density is not None:
        note_map(map_key(layer), views)
    # Under jax.grad a conversion to the same dtype is an operation, with a program to compile.
    a, b = (x if x.dtype == dtype else x.astype(dtype) for x in (features, weight))
    return (a, b), list(views.values()), layer


def _refuse_symbolic(kernel_map: KernelMap) -> None:
    sizes = kernel_map.in_capacity, kernel_map.out_capacity
    if _compat.is_symbolic(*sizes):
        raise InputError(
            f"a convolution from {sizes[0]} to {sizes[1]} rows, a symbolic size of jax.export: "
            "algorithms are chosen by numbers. Give the voxels a capacity, "
            "vx.voxelize(..., capacity=65536); the number of points may stay symbolic"
        )


def _asked(
    kind: WeightKind, forward: Request, dgrad: Request, wgrad: Request
) -> dict[Literal["requests", "stated"], Any]:
    """What a layer keeps of the requests, its own and those around it."""
    of: dict[Product, Request] = {"forward": forward, "dgrad": dgrad, "wgrad": wgrad}
    found = {name: admitted(request, kind=kind, product=name) for name, request in of.items()}
    return {
        "requests": tuple((product, request.names) for product, request in found.items()),
        "stated": tuple(product for product, request in found.items() if request.stated),
    }


@functools.lru_cache(maxsize=4096)
def _with_views(
    layer: Layer,
    dtype: Any,
    weight_shape: tuple[int, ...],
    every: bool,
    platform: str,
    hardware: HardwareInfo,
    known: Hashable,
) -> tuple[Layer, tuple[tuple[str, View | None], ...]]:
    """The layer with its view names, and these with what builds each, see :func:`views_of`.

    Remembered for eager calls: asking all kernels takes as long as the rest of a call. ``known`` is
    only a part of the key.
    """
    del known
    c_in, c_out = layer.channels(weight_shape)
    of, dtype = layer.of_problems, jnp.dtype(dtype).name
    problems = [
        (Problem(product, of, c_in, c_out, dtype, platform), names)
        for product, names in layer.requests
    ]
    read = views_of(problems, hardware, every)
    return dataclasses.replace(layer, view_names=tuple(read)), tuple(read.items())


@functools.lru_cache(maxsize=4096)
def _with_chosen_views(
    layer: Layer,
    dtype: Any,
    weight_shape: tuple[int, ...],
    moves: tuple[bool, bool],
    key: Hashable,
) -> tuple[Layer, tuple[tuple[str, View | None], ...]]:
    """As :func:`_with_views` for an eager call on a CPU: what the kernels read that will run.

    Args:
      layer, dtype, weight_shape: as there.
      moves: whether features and weight are being differentiated.
      key: of :func:`eager_key`.
    """
    del key
    c_in, c_out = layer.channels(weight_shape)
    of, dtype = layer.of_problems, jnp.dtype(dtype).name
    asked = zip(_PRODUCTS, (True, *moves), strict=True)
    read: dict[str, View | None] = {"neighbors": None}
    products: list[Product] = [product for product, is_asked in asked if is_asked]
    for product in products:
        choice = choice_for(Problem(product, of, c_in, c_out, dtype, "cpu"), layer)
        read.update(choice.kernel.views_of(choice.problem, choice.parameters))
    read = dict(sorted(read.items()))
    return dataclasses.replace(layer, view_names=tuple(read)), tuple(read.items())


_PRODUCTS: tuple[Product, ...] = "forward", "dgrad", "wgrad"


def _density(kernel_map: KernelMap) -> float | None:
    """Bucketed pairs per output row of a concrete map, counted once; None of a traced one."""
    neighbors = kernel_map.view("neighbors")
    if _compat.is_traced(neighbors) or not getattr(neighbors, "is_fully_addressable", True):
        return None

    def counted() -> float:
        valid = kernel_map.out_geometry.valid
        rows = None if _compat.is_traced(valid) else _leading_rows(valid)
        return density(neighbors if rows is None else np.asarray(neighbors)[:rows])

    return kernel_map.memo.get_or_build(("density",), neighbors, counted)


def _leading_rows(valid: jax.Array) -> int | None:
    """How many rows come first and are valid; None where others are valid too, or are unknown."""
    if not known_on_cpu(valid):
        return None
    mask = np.asarray(valid)
    count = int(np.count_nonzero(mask))
    return count if mask[:count].all() else None


def density(neighbors: jax.Array | np.ndarray) -> float:
    """Bucketed pairs for each output row that has any, from the concrete table of neighbors."""
    if not known_on_cpu(neighbors):
        return density_bucket(*map(int, _pairs_and_rows(neighbors)))
    found = (np.asarray(neighbors) >= 0).view(np.int8)
    # Of short rows, einsum takes a third of the time of sum; int8 is enough below 128 taps.
    wide = np.int8 if found.shape[1] < 128 else np.int32
    pairs = np.einsum("ij->i", found, dtype=wide)
    return density_bucket(int(pairs.sum(dtype=np.int64)), int(np.count_nonzero(pairs)))


@jax.jit
def _pairs_and_rows(neighbors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Pairs, and the output rows that have any, on a device: the table is large."""
    found = neighbors >= 0
    return jnp.sum(found, dtype=jnp.int32), jnp.sum(jnp.any(found, axis=1), dtype=jnp.int32)


def precision_name(precision: jax.lax.PrecisionLike) -> str:
    """The name that problems keep, one for all aliases; see :func:`convolve`.

    Returns:
      ``"default"``, ``"high"``, ``"highest"``, or the name of a ``jax.lax.DotAlgorithmPreset``.

    Raises:
      InputError: a name that JAX does not know.
      TypeError: neither a name nor a member of these enums.
    """
    if precision is None:
        precision = getattr(jax.config, "jax_default_matmul_precision", None) or "highest"
    if isinstance(precision, jax.lax.Precision):
        return precision.name.lower()
    presets = jax.lax.DotAlgorithmPreset
    if isinstance(precision, presets):
        return precision.name
    if not isinstance(precision, str):
        raise TypeError(
            f"precision={precision!r}: give a jax.lax.Precision or its name ('default', 'high', "
            "'highest'); both operands share one precision"
        )
    if precision in presets.__members__:
        return precision
    try:
        return jax.lax.Precision(precision).name.lower()
    except ValueError:
        known = ("default", "high", "highest", *presets.__members__)
        raise InputError(f"unknown precision {precision!r}; known: {', '.join(known)}") from None


def convolve_modulated(
    features: jax.Array,
    weight: jax.Array,
    factors: jax.Array,
    kernel_map: KernelMap,
    **options: Any,
) -> jax.Array:
    """``y[m] = sum_k factors[m, k] * features[neighbors[m, k]] @ weight[k]``.

    It is linear in three operands, so it is none of the three bilinear products. But the factor of
    one tap belongs to the output row: ``y = sum_k factors[:, k] * (A_k x w[k])`` is a sum of scaled
    products over maps of one tap, with their differentiation rule and algorithms. A loop over taps
    makes one program for any number; for derivatives each tap's product is computed again.

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
    dtype = common_dtype(features.dtype, weight.dtype)
    wide, neighbors = accumulator(dtype), kernel_map.neighbors
    # A factor without a pair, NaN included, reaches no result and no gradient.
    scale = jnp.where(neighbors >= 0, factors, jnp.zeros((), factors.dtype)).astype(wide)
    # Every tap takes the offset of the first: the tuner then measures one problem, not K.
    spec = dataclasses.replace(kernel_map.spec, offsets=kernel_map.spec.offsets[:1])

    def tap(
        total: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        rows, w, factor = step
        views = {"neighbors": rows[:, None]}
        ends = kernel_map.in_geometry, kernel_map.out_geometry
        one = KernelMap(*ends, spec, views, True, check=False)
        part = convolve(features, w[None], one, **options).astype(wide)
        return total + part * factor[:, None], None

    channels = weight.shape[-1] * (weight.shape[1] if weight.ndim == 4 else 1)
    start = zeros((len(neighbors), channels), wide, features)
    total, _ = jax.lax.scan(jax.checkpoint(tap), start, (neighbors.T, weight, scale.T))
    return total.astype(dtype)


@functools.lru_cache(maxsize=1024)  # asked in every eager call
def sized_spec(
    shape: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> KernelSpec:
    """The relation of the largest kernel. Unlike in :meth:`KernelSpec.make`, sizes nest for every
    stride: a size equal to the stride is centered like any other.

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
    uniform: Uniform = "",
    method: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """``y[u] = sum over taps k of sizes[u] of x[u * stride + offset_k * dilation] @ weight[k]``.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, taps as in ``spec``.
      sizes: ``int32[B, *outputs]``.
      spec: offsets, stride and dilation.
      uniform: what is known of ``sizes``: with ``all`` they reach every tap.
      method: a request among the strategies, for all three products.
      precision: as for :func:`voxax.products.convolve`.

    Returns:
      ``[B, *outputs, C_out]``.
    """
    dtype = common_dtype(x.dtype, weight.dtype)
    asked = _asked("dynamic", method, method, method)
    grid = x.shape[:-1]
    outputs = output_grid(grid, spec.stride)
    if not (math.prod(grid) and weight.size):
        return jnp.zeros((*outputs, weight.shape[-1]), dtype)
    layer = Layer(
        in_capacity=math.prod(grid),
        out_capacity=math.prod(outputs),
        num_offsets=spec.num_offsets,
        symmetric=False,
        kind="dynamic",
        groups=1,
        precision=precision_name(precision),
        spec=spec,
        grid=grid,
        uniform=uniform,
        **asked,
        view_names=("sizes",),
    )
    pinned = any(names == ("specialized",) for _, names in layer.requests)
    is_open = any(len(names) > 1 for _, names in layer.requests)
    known = not _compat.is_traced(sizes) and getattr(sizes, "is_fully_addressable", True)
    if uniform == "all":
        if pinned:
            everywhere = np.full(layer.out_capacity, _largest(spec), np.int32)
            layer = _counted(layer, everywhere, pinned)
    elif known and (pinned or (autotune_mode() != "off" and is_open)):
        layer = _counted(layer, np.asarray(sizes), pinned)
    if layer.density is not None:
        note_map(map_key(layer), {"sizes": sizes})
    traced = _compat.is_traced(x, weight, sizes)
    return (_on_grid if traced else _on_grid_eagerly)(x, weight, sizes, layer)


def _on_grid(x: jax.Array, weight: jax.Array, sizes: jax.Array, layer: Layer) -> jax.Array:
    dtype = common_dtype(x.dtype, weight.dtype)
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)
    operands = _compat.vary_alike(rows, weight.astype(dtype), sizes.reshape(-1))
    out = forward_p.bind(*operands, layer=layer)
    stride = () if layer.spec is None else layer.spec.stride
    return out.reshape(*output_grid(layer.grid, stride), -1)


# Eager calls are one program: an array that is reshaped by itself is copied.
_on_grid_eagerly = jax.jit(_on_grid, static_argnames="layer")


def statistics(layer: Layer, sizes: np.ndarray) -> dict[str, Any]:
    """What a layer keeps of these sizes: taps per output, also by tiles, and whether they differ
    within a scene."""
    spec = layer.spec
    if spec is None or layer.uniform == "all":
        return {}
    counts, outputs = _counts(spec), output_grid(layer.grid, spec.stride)
    sizes = np.clip(sizes, 0, len(counts) - 1).reshape(outputs[0], -1)
    if (sizes == sizes[:, :1]).all():
        scenes = density_bucket(int(counts[sizes[:, 0]].sum()), len(sizes))
        return {"uniform": "scenes", "density": scenes, "tile_density": scenes}
    taps = counts[sizes].reshape(outputs)
    return {
        "uniform": "",
        "density": density_bucket(int(taps.sum()), taps.size),
        "tile_density": density_bucket(int(tile_maximum(taps, _TILE).sum()), taps.size),
    }


@functools.lru_cache(maxsize=1024)  # asked in every eager call
def _counts(spec: KernelSpec) -> np.ndarray:
    """Taps of each size, from 0."""
    return taps_within(np.asarray(spec.offsets))


def _counted(layer: Layer, sizes: np.ndarray, specialize: bool) -> Layer:
    """The layer with the densities of its sizes, and the histogram to specialize on."""
    layer = dataclasses.replace(layer, **statistics(layer, sizes))
    if not specialize or layer.spec is None:
        return layer
    largest = _largest(layer.spec)
    at_least = [int((sizes >= size).sum()) for size in range(largest + 1)]
    return dataclasses.replace(layer, prefix=prefix_of([sizes.size, *at_least[1:]], sizes.size))


def _largest(spec: KernelSpec) -> int:
    """The size that has every tap."""
    return int(reaching_size(np.asarray(spec.offsets)).max())


def largest_size(shape: tuple[int, ...]) -> int:
    """The size that has every tap of a kernel of this shape."""
    return int(reaching_size(np.asarray(box_offsets(shape, (0,) * len(shape)))).max())
