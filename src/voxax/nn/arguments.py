"""Check the arguments of sparse layers, and build the Voxels that the layers return."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.errors import GeometryMismatchError, InputError
from voxax.geometry import (
    KernelMap,
    KernelShape,
    KernelSpec,
    Voxels,
    kernel_map_of,
    result_geometry,
)
from voxax.geometry.call_checks import axes_hint
from voxax.geometry.dtypes import accumulator
from voxax.geometry.row_operations import add_to_rows
from voxax.products import convolve
from voxax.tuning import Request


def request_map(
    voxels: Voxels,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> KernelMap:
    """Return ``kernel_map`` after checks; if it is None, the map that the other arguments describe.

    A kernel map lists the pairs of input and output voxels of each tap (kernel offset). The
    arguments are those of :func:`voxax.nn.functional.spatially_sparse_conv`.

    Raises:
      InputError: ``kernel_map`` is given together with an argument that describes a map, such as
        ``stride``, or was built for another number of input rows than ``voxels`` have.
      GeometryMismatchError: ``kernel_map`` is for other voxels; checked only in eager calls.
    """
    if kernel_map is not None:
        given = {
            "stride": stride != 1,
            "dilation": dilation != 1,
            "transposed": transposed,
            "generative": generative,
            "out_voxels": out_voxels is not None,
            "capacity": capacity is not None,
            "kernel_shape": not isinstance(kernel_shape, str) or kernel_shape != "box",
            "spatial_shape": spatial_shape is not None,
        }
        if clash := [name for name, is_given in given.items() if is_given]:
            raise InputError(f"kernel_map= already fixes {', '.join(clash)}: give one or the other")
        if kernel_map.feature_rows != voxels.capacity:
            raise InputError(
                f"kernel_map was built for capacity {kernel_map.feature_rows}, the voxels have "
                f"{voxels.capacity}"
            )
        source, given_geometry = kernel_map.in_geometry, voxels.geometry
        known = not _compat.is_traced(source.coords, given_geometry.coords)
        if known and not source.same_as(given_geometry):
            raise GeometryMismatchError(
                f"kernel_map was built for {source!r}, the voxels are on {given_geometry!r}"
                f"{source.difference(given_geometry)}: build the map from these voxels with "
                "vx.kernel_map"
            )
        return kernel_map
    spec = KernelSpec.make(
        voxels.geometry.ndim,
        kernel_size,
        stride,
        dilation,
        transposed,
        generative,
        kernel_shape=kernel_shape,
        spatial_shape=spatial_shape,
    )
    out = None if out_voxels is None else out_voxels.geometry
    built = kernel_map_of(voxels.geometry, spec, out, capacity)
    warn_if_inputs_unused(spec)
    return built


@functools.lru_cache(maxsize=256)
def warn_if_inputs_unused(spec: KernelSpec) -> None:
    """Warn, once per ``spec``, if the kernel is smaller than the stride and skips some inputs."""
    extents = [
        (max(axis) - min(axis)) * d + 1
        for axis, d in zip(zip(*spec.offsets, strict=True), spec.dilation, strict=True)
    ]
    if any(e < s for e, s in zip(extents, spec.stride, strict=True)):
        warnings.warn(
            f"a kernel of extent {tuple(extents)} with stride {spec.stride} leaves inputs unused: "
            "no tap reaches them; use a kernel at least as large as the stride",
            stacklevel=4,
        )


def check_weight(weight: Any, kernel_map: KernelMap, channels: int, groups: int) -> None:
    """Raise :class:`InputError` unless ``weight`` fits ``kernel_map``, ``channels`` and ``groups``.

    The weight is ``[K, groups, channels / groups, C_out / groups]`` with any C_out, where K is the
    number of taps of ``kernel_map``. With one group it may also be ``[K, channels, C_out]``.
    """
    taps = kernel_map.num_offsets
    if not hasattr(weight, "ndim"):
        raise InputError(
            f"a weight of type {type(weight).__name__}: give an array [{taps}, {channels}, C_out]"
        )
    if groups < 1:
        raise InputError(f"groups={groups} must be at least 1")
    grouped = taps, groups, channels // groups
    good = weight.ndim == 4 and weight.shape[:3] == grouped and channels % groups == 0
    good |= groups == 1 and weight.ndim == 3 and weight.shape[:2] == (taps, channels)
    if not good:
        known = (taps, channels, "C_out") if groups == 1 else (*grouped, "C_out / groups")
        shape = ", ".join(map(str, known))
        axes = weight.shape[:-2] if groups == 1 else weight.shape[:-3]
        inner = weight.shape[len(axes) :]
        hint = ""
        if len(axes) > 1 and math.prod(axes) == taps and inner[:-1] == known[1:-1]:
            hint = f"; weight.reshape({taps}, *weight.shape[-{len(inner)}:]) has it"
        elif weight.ndim == len(known):  # compare with the same kernel on one axis less
            ndim = kernel_map.spec.ndim
            fewer = {offset[:-1] for offset in kernel_map.spec.offsets}
            hint = axes_hint(ndim - 1, ndim) if len(fewer) == weight.shape[0] else ""
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for a kernel of {taps} taps "
            f"({kernel_map.spec}), {channels} input channels, groups={groups}: expected [{shape}]"
            f"{hint}"
        )


def check_shape(name: str, array: Any, *expected: tuple[int, ...]) -> None:
    """Raise :class:`InputError` unless ``array`` has floats and one of the ``expected`` shapes."""
    if array.shape not in expected:
        shapes = " or ".join(str(list(shape)) for shape in expected)
        raise InputError(f"{name} of shape {tuple(array.shape)}: expected {shapes}")
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(f"{name} of {array.dtype}: expected floats")


def static(value: Any) -> Any:
    """Return ``value`` in hashable form: sequences and arrays become tuples of Python scalars.

    Modules store their static attributes in this form. flax compares and hashes modules by static
    attributes, and would treat an array as a parameter.
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(map(static, value))
    return value


def own_ndim(module: Any, ndim: int | None) -> int:
    """Return a module's number of spatial axes: ``ndim`` if given, else ``module.NDIM``, else 3.

    Raise :class:`InputError` if ``ndim`` and ``module.NDIM`` are both given and differ.
    """
    if ndim is not None and module.NDIM not in (None, ndim):
        raise InputError(
            f"{type(module).__name__} has {module.NDIM} axes, got ndim={ndim}: leave ndim out, or "
            "use SpatiallySparseConv"
        )
    return ndim or module.NDIM or 3


def check_groups(groups: int, in_channels: int, out_channels: int) -> None:
    """Raise :class:`InputError` unless ``groups`` divides ``in_channels`` and ``out_channels``."""
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise InputError(
            f"groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}"
        )


def check_keeps_voxels(
    module: Any, stride: int | Sequence[int], transposed: bool, generative: bool
) -> None:
    """Raise :class:`InputError` if stride is not 1, or ``transposed`` or ``generative`` is True.

    Call it for a module whose output voxels are its input voxels. The message names ``module``.
    """
    given = {"transposed": transposed, "generative": generative}
    clash = [name for name, is_given in given.items() if is_given]
    if np.any(np.asarray(stride) != 1):
        clash.insert(0, f"stride {stride}")
    if clash:
        other = "SpatiallySparseConv" if module.NDIM is None else f"SparseConv{module.NDIM}d"
        raise InputError(
            f"{type(module).__name__} keeps the voxels, so it takes no {', '.join(clash)}: use "
            f"{other}"
        )


def refuse_arrays(layer: Any, voxels: Any) -> None:
    """Raise :class:`InputError` if a layer's input is neither Voxels nor Points, or stacked ones.

    Args:
      layer: the module, or the name of the function.
      voxels: the input of the layer's call.
    """
    name = layer if isinstance(layer, str) else type(layer).__name__
    if hasattr(voxels, "features"):
        if len(voxels.features.shape) > 2:
            raise InputError(
                f"{name} takes features [capacity, C], got {list(voxels.features.shape)}, with a "
                "leading axis, as if several Voxels were stacked: call it under jax.vmap, which "
                "maps over that axis"
            )
        return
    shape = getattr(voxels, "shape", None)
    what = type(voxels).__name__ if shape is None else f"an array {list(shape)}"
    raise InputError(
        f"{name} takes vx.Voxels, got {what}: make them by vx.voxelize(positions, features, "
        "voxel_size). After GlobalPool, features are an array [scenes, C], which layers of flax "
        "take: nnx.Linear"
    )


def refuse_points(layer: Any, voxels: Any) -> None:
    """Raise :class:`InputError` if a layer that needs voxels on a lattice is called with Points."""
    if not hasattr(voxels, "geometry") and hasattr(voxels, "batch_index"):
        name = layer if isinstance(layer, str) else type(layer).__name__
        raise InputError(
            f"{name} takes vx.Voxels, got Points: vx.voxelize(points, voxel_size=...) makes voxels "
            "of them"
        )


def check_channels(module: Any, expected: int, voxels: Any) -> None:
    """Raise :class:`InputError` unless ``voxels``, a module's input, have ``expected`` channels."""
    refuse_arrays(module, voxels)
    if voxels.num_channels != expected:
        raise InputError(
            f"{type(module).__name__} expects {expected} channels, the voxels have "
            f"{voxels.num_channels}"
        )


def by_product(
    fwd_algo: Request, bwd_algo: Request, dgrad_algo: Request = None, wgrad_algo: Request = None
) -> dict[str, Request]:
    """Return the algorithm requests for a convolution and its two gradients, by argument name.

    The keys are ``fwd_algo`` (the convolution), ``dgrad_algo`` (gradient of the features) and
    ``wgrad_algo`` (gradient of the weight). Where ``dgrad_algo`` or ``wgrad_algo`` is None, the
    value is ``bwd_algo``.
    """
    return {
        "fwd_algo": fwd_algo,
        "dgrad_algo": bwd_algo if dgrad_algo is None else dgrad_algo,
        "wgrad_algo": bwd_algo if wgrad_algo is None else wgrad_algo,
    }


def convolve_voxels(
    voxels: Voxels,
    weight: jax.Array,
    kernel_map: KernelMap,
    bias: jax.Array | None,
    groups: int,
    out_voxels: Voxels | None,
    **options: Any,
) -> Voxels:
    """Return the convolution of ``voxels`` over a kernel map, as Voxels at the map's outputs.

    The shape of the weight is checked first.

    Args:
      voxels, weight, bias, groups, out_voxels: as in
        :func:`voxax.nn.functional.spatially_sparse_conv`.
      kernel_map: from :func:`request_map`.
      options: keyword arguments of :func:`voxax.products.convolve`.
    """
    check_weight(weight, kernel_map, voxels.num_channels, groups)
    with jax.named_scope("spatially_sparse_conv"):
        features = convolve(voxels.features, weight, kernel_map, **options)
        return output_voxels(voxels, kernel_map, features, out_voxels, bias)


def output_voxels(
    voxels: Voxels,
    kernel_map: KernelMap,
    features: jax.Array,
    out_voxels: Voxels | None = None,
    bias: jax.Array | None = None,
) -> Voxels:
    """Return Voxels at the output coordinates of ``kernel_map``, with the given features.

    The features are ``features [out_capacity, C]``, plus ``bias [C]`` if given. ``voxels`` are the
    inputs of the map. If ``out_voxels`` are given, they are its outputs, and the result has their
    coordinates.
    """
    target = None if out_voxels is None else out_voxels.geometry
    geometry = result_geometry(kernel_map, voxels.geometry, target)
    out = dataclasses.replace(voxels, geometry=geometry, features=features)
    # replace_features keeps the padding rows at zero.
    return out if bias is None else out.replace_features(add_bias(features, bias))


def add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Return ``y [..., C] + bias [C]`` in the dtype of ``y``, or ``y`` if ``bias`` is None.

    The addition uses the accumulator's dtype (at least float32), so that the gradient of the bias,
    a sum over all positions, is accumulated in this dtype too.

    Raises:
      InputError: ``bias`` has another shape or is a bool, or just one of ``y`` and ``bias`` is
        integer.
    """
    if bias is None:
        return y
    if isinstance(bias, bool):
        raise InputError(f"bias={bias}: give the array [{y.shape[-1]}], or None for no bias")
    if bias.shape != y.shape[-1:]:
        raise InputError(
            f"bias of shape {bias.shape} for {y.shape[-1]} output channels: expected "
            f"[{y.shape[-1]}]"
        )
    if jnp.issubdtype(y.dtype, jnp.integer) != jnp.issubdtype(bias.dtype, jnp.integer):
        raise InputError(
            f"bias of dtype {bias.dtype} for a convolution of dtype {y.dtype}: an integer "
            "convolution takes an integer bias, a floating-point one a float"
        )
    if y.ndim == 2:
        return add_to_rows(y, bias)
    wide = accumulator(y.dtype)
    return (y.astype(wide) + bias.astype(wide).reshape((1,) * (y.ndim - 1) + (-1,))).astype(y.dtype)
