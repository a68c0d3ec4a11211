"""Argument checks shared by the functional layers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

from voxax import _compat
from voxax.errors import GeometryMismatchError, InputError
from voxax.geometry import KernelMap, KernelShape, KernelSpec, Voxels
from voxax.geometry import kernel_map as build_map


def request_map(
    voxels: Voxels,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
    transposed: bool,
    generative: bool,
    out_voxels: Voxels | None,
    capacity: int | None,
    kernel_map: KernelMap | None = None,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> KernelMap:
    """The kernel map a layer's arguments describe, or the given one, checked.

    Raises:
      InputError: ``kernel_map`` together with arguments it already fixes, or a map of
        another capacity.
      GeometryMismatchError: eager, and a map of other voxels.
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
                f"kernel_map was built for {source!r}, the voxels live on {given_geometry!r}: "
                "build the map from these voxels with vx.kernel_map"
            )
        return kernel_map
    built = build_map(
        voxels,
        kernel_size,
        stride,
        dilation,
        transposed,
        generative,
        out_voxels,
        capacity,
        kernel_shape=kernel_shape,
        spatial_shape=spatial_shape,
    )
    warn_if_inputs_unused(built.spec)
    return built


@functools.lru_cache(maxsize=256)
def warn_if_inputs_unused(spec: KernelSpec) -> None:
    """Warn, once per spec, about a kernel smaller than its stride."""
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
    """Weight (or its shape) ``[K, C_in, C_out]``, or ``[K, G, C_in/G, C_out/G]`` with groups."""
    taps = kernel_map.num_offsets
    if groups < 1:
        raise InputError(f"groups={groups} must be at least 1")
    if groups == 1 and weight.ndim == 3:
        expected: tuple = (taps, channels, "C_out")
        good = weight.shape[:2] == (taps, channels)
    else:
        expected = (taps, groups, channels // max(groups, 1), "C_out / groups")
        good = weight.ndim == 4 and weight.shape[:3] == expected[:3] and channels % groups == 0
    if not good:
        shape = ", ".join(map(str, expected))
        raise InputError(
            f"weight of shape {tuple(weight.shape)} for a kernel of {taps} taps "
            f"({kernel_map.spec}), {channels} input channels, groups={groups}: expected [{shape}]"
        )
