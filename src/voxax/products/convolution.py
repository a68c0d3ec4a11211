"""Sparse convolution of features over a kernel map, and dynamic convolution on a regular grid.

Each function resolves the requested algorithms and the precision. It then binds the primitive of
the forward product with the arrays of the map that an algorithm may read.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
from voxax.hardware import hardware_of, target_platform
from voxax.kernels import Epilogue, Layer, Problem, Product, WeightKind, registry
from voxax.kernels.dynamic.grid import output_grid, tile_maximum
from voxax.kernels.dynamic.grouped import prefix_of
from voxax.kernels.kernel import GridSizes, Uniform
from voxax.kernels.rows import zeros
from voxax.products.primitives import After, choice_for, convolved, eager_key, forward_p
from voxax.tuning import Request, admitted, autotune_mode, views_of
from voxax.tuning.concrete_maps import note_map, observe
from voxax.tuning.entry import density_bucket

_KINDS: dict[int, WeightKind] = {2: "depthwise", 3: "dense", 4: "grouped"}
_PRODUCTS: tuple[Product, ...] = "forward", "dgrad", "wgrad"
_TILE = 16  # positions along each axis of a tile, for GridSizes.tile_density


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
    """Convolve features over a kernel map: ``y[m] = sum_k features[neighbors[m, k]] @ weight[k]``.

    Args:
      features: ``[kernel_map.feature_rows, C_in]``.
      weight: ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]`` or, depthwise, ``[K, C]``.
      kernel_map: the map from input to output rows, by tap.
      fwd_algo, dgrad_algo, wgrad_algo: the algorithms to admit for each product. None takes those
        of the enclosing :func:`voxax.algorithms` or the environment, else all.
      precision: the precision of products; None takes ``jax.default_matmul_precision`` if it is
        set, else the full precision of the input dtype.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight; int32 if that is an
      integer of 8 or 16 bits.
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
    """Convolve, then apply an epilogue such as batch norm and ReLU, in one kernel if possible.

    The result is ``after(convolve(features, weight, kernel_map), epilogue)``. Its derivatives are
    those of the product, then of ``after``.

    Args:
      epilogue: the parameters of the operations after the product.
      after: a function that applies the epilogue to the product's result ``[out_capacity, C_out]``;
        its result must have the same shape and dtype.
      features, weight, kernel_map, fwd_algo, dgrad_algo, wgrad_algo, precision: as for
        :func:`convolve`; features and weight are floating-point.
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
    """Return the operands, the kernel map's arrays, and the static :class:`Layer` of a convolution.

    The arguments are those of :func:`convolve`. The operands are ``(features, weight)`` in one
    dtype. The arrays are those that kernels may read, in the order of the layer's ``view_names``.
    """
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
        **asked,
    )
    if tunes:
        layer = observe(layer, kernel_map)
    evaluated = _compat.is_evaluated(features, weight) and not _compat.is_mapped(features, weight)
    # Under vmap, the batching rule creates another problem, so nothing is chosen here.
    if evaluated and known_on_cpu(kernel_map.view("neighbors")):
        moves = True, _compat.is_traced(features), _compat.is_traced(weight)
        runs, platform, key = tuple(itertools.compress(_PRODUCTS, moves)), "cpu", eager_key()
    else:
        runs, platform = None, target_platform()
        # A kernel's answer depends on the problem, the hardware, and whether the library is there.
        key = hardware_of(platform)[0], registry.kernels(), _native.unavailable()
    layer, read = _with_views(layer, dtype, weight.shape, platform, runs, tunes, key)
    views = {name: kernel_map.view(name, view) for name, view in read}
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
    """Return the fields ``requests`` and ``stated`` of a :class:`Layer` with weights of ``kind``.

    A request of None is resolved as in :func:`convolve`.
    """
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
    platform: str,
    runs: tuple[Product, ...] | None,
    tunes: bool,
    key: Hashable,
) -> tuple[Layer, tuple[tuple[str, View | None], ...]]:
    """Return the layer with the names of the map arrays that kernels read, and how to get them.

    The names are in ``view_names`` of the layer. The second result has ``(name, builder)`` for each
    array; the builder is None for an array that the kernel map provides. The result is cached,
    because a query of all kernels takes as long as all other work of an eager call.

    Args:
      layer, dtype, weight_shape, platform: the layer, and what else describes its products.
      runs: the products that an eager call computes; their kernels are chosen here. None takes the
        arrays of all kernels that may be chosen later, see :func:`voxax.tuning.views_of`.
      tunes: whether kernels may be measured.
      key: other values that the result depends on, for the cache.
    """
    del key
    of, dtype = layer.of_problems, jnp.dtype(dtype).name
    rest = of, *layer.channels(weight_shape), dtype, platform
    requests = {product: (Problem(product, *rest), names) for product, names in layer.requests}
    read: dict[str, View | None]
    if runs is None:
        hardware, _ = hardware_of(platform)
        read = views_of(requests.values(), hardware, tunes)
    else:
        read = {"neighbors": None}
        for product in runs:
            choice = choice_for(requests[product][0], layer)
            read.update(choice.kernel.views_of(choice.problem, choice.parameters))
    read = dict(sorted(read.items()))
    return dataclasses.replace(layer, view_names=tuple(read)), tuple(read.items())


def precision_name(precision: jax.lax.PrecisionLike) -> str:
    """Return the canonical name of a matmul precision, the same for all aliases in JAX.

    None takes ``jax_default_matmul_precision`` if it is set, else ``"highest"``.

    Returns:
      ``"default"``, ``"high"``, ``"highest"``, or the name of a ``jax.lax.DotAlgorithmPreset``.

    Raises:
      InputError: JAX does not know the name.
      TypeError: ``precision`` is neither a name nor a member of ``jax.lax.Precision`` or of
        ``jax.lax.DotAlgorithmPreset``.
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
    """Convolve with a scalar factor for each output row and tap, as in modulated convolution.

    ``y[m] = sum_k factors[m, k] * features[neighbors[m, k]] @ weight[k]``. A loop over taps
    computes each tap by :func:`convolve` on a map of one tap, and scales the result. Derivatives
    compute each tap's product again.

    Args:
      features: ``[kernel_map.feature_rows, C_in]``.
      weight: ``[K, C_in, C_out]`` or ``[K, G, C_in/G, C_out/G]``.
      factors: ``[out_capacity, K]``, floating-point; entries without a neighbor are ignored.
      kernel_map: the map from input to output rows, by tap.
      options: the keyword arguments of :func:`voxax.products.convolve`.

    Returns:
      ``[out_capacity, C_out]`` in the promoted dtype of features and weight; factors are applied,
      and taps added, in at least float32.
    """
    features, kernel_map = kernel_map.with_halo(features)
    dtype = common_dtype(features.dtype, weight.dtype)
    wide, neighbors = accumulator(dtype), kernel_map.neighbors
    # Factors of missing neighbors are set to zero, so that NaN in them reaches nothing.
    scale = jnp.where(neighbors >= 0, factors, jnp.zeros((), factors.dtype)).astype(wide)
    # All taps share the offset of the first: the tuner then measures one problem, not K.
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


@functools.lru_cache(maxsize=1024)  # called in every eager call
def sized_spec(
    shape: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> KernelSpec:
    """Return the spec (offsets, stride, dilation) of a dynamic convolution's largest kernel.

    ``shape`` is the number of taps of this kernel along each axis. Every kernel size is centered,
    for every stride, so that smaller kernels lie inside larger ones. :meth:`KernelSpec.make`
    differs: it does not center a size that equals the stride.

    Raises:
      InputError: a tap or a stride reaches further than 2**28 cells.
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
    algorithm: Request = None,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Convolve a regular grid, where each output position u has its own kernel size.

    ``y[u] = sum_k x[u * stride + offset_k * dilation] @ weight[k]``, over the taps k within the
    kernel of size ``sizes[u]``.

    Args:
      x: ``[B, *spatial, C]``.
      weight: ``[K, C, C_out]``, with the K taps in the order of ``spec.offsets``.
      sizes: ``int32[B, *outputs]``, the kernel size of each output position.
      spec: offsets, stride and dilation of the largest kernel.
      uniform: what is known about ``sizes``, see :data:`voxax.kernels.kernel.Uniform`.
      algorithm: the strategies to admit, for all three products. None takes those of the enclosing
        :func:`voxax.algorithms` or the environment, else all.
      precision: as for :func:`voxax.products.convolve`.

    Returns:
      ``[B, *outputs, C_out]``.
    """
    dtype = common_dtype(x.dtype, weight.dtype)
    asked = _asked("dynamic", algorithm, algorithm, algorithm)
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
        sizes=GridSizes(grid, uniform=uniform),
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
        note_map(layer, sizes)
    traced = _compat.is_traced(x, weight, sizes)
    return (_on_grid if traced else _on_grid_eagerly)(x, weight, sizes, layer)


def _on_grid(x: jax.Array, weight: jax.Array, sizes: jax.Array, layer: Layer) -> jax.Array:
    dtype = common_dtype(x.dtype, weight.dtype)
    rows = x.reshape(-1, x.shape[-1]).astype(dtype)
    operands = _compat.vary_alike(rows, weight.astype(dtype), sizes.reshape(-1))
    out = forward_p.bind(*operands, layer=layer)
    return out.reshape(*output_grid(layer.sizes.grid, layer.spec.stride), -1)


# An eager call is one program, because a separate reshape would copy the array.
_on_grid_eagerly = jax.jit(_on_grid, static_argnames="layer")


def with_statistics(layer: Layer, sizes: np.ndarray) -> Layer:
    """Return a copy of a dynamic layer with statistics of its kernel sizes, ``int32[*outputs]``.

    The statistics are :attr:`Layer.density`, and ``tile_density`` and ``uniform`` of
    :class:`GridSizes`. A layer in which every position has all taps is returned as it is.
    """
    if layer.sizes.uniform == "all":
        return layer
    counts, outputs = _counts(layer.spec), output_grid(layer.sizes.grid, layer.spec.stride)
    sizes = np.clip(sizes, 0, len(counts) - 1).reshape(outputs[0], -1)
    if (sizes == sizes[:, :1]).all():
        uniform: Uniform = "scenes"
        by_tiles = density = density_bucket(int(counts[sizes[:, 0]].sum()), len(sizes))
    else:
        taps, uniform = counts[sizes].reshape(outputs), ""
        density = density_bucket(int(taps.sum()), taps.size)
        by_tiles = density_bucket(int(tile_maximum(taps, _TILE).sum()), taps.size)
    found = dataclasses.replace(layer.sizes, tile_density=by_tiles, uniform=uniform)
    return dataclasses.replace(layer, density=density, sizes=found)


@functools.lru_cache(maxsize=1024)  # called in every eager call
def _counts(spec: KernelSpec) -> np.ndarray:
    """Return the number of kernel offsets within each kernel size 0, 1, ..., ``int[largest + 1]``.

    The largest size contains all offsets of ``spec``.
    """
    return taps_within(np.asarray(spec.offsets))


def _counted(layer: Layer, sizes: np.ndarray, specialize: bool) -> Layer:
    """Return a dynamic layer with statistics of the kernel sizes, see :func:`with_statistics`.

    ``sizes`` has the kernel size of each output position. If ``specialize``, also set
    :attr:`GridSizes.prefix`, for programs compiled for these sizes.
    """
    layer = with_statistics(layer, sizes)
    if not specialize:
        return layer
    largest = _largest(layer.spec)
    at_least = [int((sizes >= size).sum()) for size in range(largest + 1)]
    prefix = prefix_of([sizes.size, *at_least[1:]], sizes.size)
    return dataclasses.replace(layer, sizes=dataclasses.replace(layer.sizes, prefix=prefix))


def _largest(spec: KernelSpec) -> int:
    """Return the smallest kernel size that includes every tap of the spec."""
    return int(reaching_size(np.asarray(spec.offsets)).max())


def largest_size(shape: tuple[int, ...]) -> int:
    """Return the smallest kernel size that includes every tap of a box kernel of this shape."""
    return int(reaching_size(np.asarray(box_offsets(shape, (0,) * len(shape)))).max())
