"""Describe kernels by their sizes and shape, and compute the offsets of their taps."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.arguments import checked_dimension, convert_to_int_list, positive
from voxax.torch.minkowski.constants import RegionType

Ints = tuple[int, ...]
_CROSS = RegionType.HYPER_CROSS


class Kernel(NamedTuple):
    """Sizes and shape of a kernel, hashable.

    ``own`` has the kernel offsets of a ``CUSTOM`` region, in steps of the dilation. It is empty for
    other regions.
    """

    size: Ints
    stride: Ints
    dilation: Ints
    region: RegionType = RegionType.HYPER_CUBE
    own: tuple[Ints, ...] = ()

    def offsets(self, tensor_stride: Sequence[int]) -> np.ndarray:
        """Return the kernel offsets in units of coordinates, ``int32[K, D]``.

        They are multiples of the dilation, times ``tensor_stride``. This is the tensor stride of
        the input, or of the output of a transposed layer.
        """
        return _offsets(self, tuple(tensor_stride))

    @property
    def is_window(self) -> bool:
        """Whether size and stride are equal, so that pooling windows do not overlap."""
        return self.size == self.stride


@functools.lru_cache(maxsize=256)
def _offsets(kernel: Kernel, tensor_stride: Ints) -> np.ndarray:
    if kernel.region is RegionType.HYPER_CUBE:
        taps = _cube(kernel.size)
    else:
        taps = _cross(kernel.size) if kernel.region is _CROSS else list(kernel.own)
    steps = np.multiply(kernel.dilation, tensor_stride)
    offsets = np.asarray(taps, np.int64).reshape(-1, len(kernel.size)) * steps
    far = np.abs(offsets).max(initial=0)
    if far >= 2**30:
        raise ArgumentError(
            f"taps {far} away (kernel size {kernel.size}, dilation {kernel.dilation}, tensor "
            f"stride {tensor_stride}): at most 2^30"
        )
    offsets = offsets.astype(np.int32)
    offsets.flags.writeable = False  # all calls get this array
    return offsets


def _cube(size: Ints) -> list[Ints]:
    """Return the kernel offsets of a box, in steps of the dilation; the first axis varies fastest.

    ``size`` is the kernel size on each axis. Along an axis, the offsets of an even size begin at 0,
    and those of an odd size are centered.
    """
    steps = [range(k) if k % 2 == 0 else range(-(k // 2), k // 2 + 1) for k in size]
    return [taps[::-1] for taps in itertools.product(*steps[::-1])]


def _cross(size: Ints) -> list[Ints]:
    """Return the kernel offsets of a cross, in steps of the dilation.

    The center is the first offset. Then each axis, of size k, adds offsets along this axis: 1, 2,
    ... r, -r, ... -1, where r is ``k // 2``.
    """
    zero: Ints = (0,) * len(size)
    taps: list[Ints] = [zero]
    for axis, k in enumerate(size):
        r = k // 2
        steps = [*range(1, r + 1), *range(-r, 0)]
        taps += [(*zero[:axis], step, *zero[axis + 1 :]) for step in steps]
    return taps


def _hybrid(size: Sequence[int], axis_types: Sequence[RegionType]) -> list[Ints]:
    """Return the kernel offsets of a hybrid kernel, in steps of the dilation.

    Axes whose type is ``HYPER_CUBE`` span a box together. An axis whose type is ``HYPER_CROSS``
    adds offsets along this axis alone. The center is the first offset, then come the other offsets
    of the box, then those of the cross.
    """
    zero: Ints = (0,) * len(size)
    taps: list[Ints] = [zero]
    for region in (RegionType.HYPER_CUBE, RegionType.HYPER_CROSS):
        for axis, (k, own) in enumerate(zip(size, axis_types, strict=True)):
            if own is region:
                bases = list(taps) if region is RegionType.HYPER_CUBE else [zero]
                steps = [step - (k - 1) // 2 for step in range(k)]
                moves = [(base, step) for base in bases for step in steps if step]
                taps += [(*base[:axis], step, *base[axis + 1 :]) for base, step in moves]
    return taps


def get_kernel_volume(
    region_type: RegionType,
    kernel_size: Sequence[int],
    region_offset: torch.Tensor | None,
    axis_types: Sequence[RegionType] | None,
    dimension: int,
) -> int:
    """Return the number of taps of a kernel.

    Args:
      region_type: shape of the kernel, which defines the taps.
      kernel_size: size along each axis, or one size for all axes.
      region_offset: ``int[K, D]``, the taps of a custom region.
      axis_types: cube or cross for each axis of a hybrid region.
      dimension: D, the number of spatial axes.

    Raises:
      ArgumentError: a size is below 1, a cross has an even size, a custom region lacks offsets, a
        hybrid region lacks axis types, or another region has offsets or axis types.
    """
    size = positive("kernel_size", kernel_size, dimension)
    custom, hybrid = region_type is RegionType.CUSTOM, region_type is RegionType.HYBRID
    given = region_offset is not None and region_offset.numel() > 0
    if given != custom:
        raise ArgumentError(f"region_offsets are for RegionType.CUSTOM alone, not {region_type}")
    if (axis_types is not None) != hybrid:
        raise ArgumentError(f"axis_types are for RegionType.HYBRID alone, not {region_type}")
    if custom:
        assert region_offset is not None
        if region_offset.ndim != 2 or region_offset.shape[1] != dimension:
            raise ArgumentError(
                f"region_offsets of shape {tuple(region_offset.shape)}: expected [K, {dimension}]"
            )
        return len(region_offset)
    kinds = [region_type] * dimension if axis_types is None else axis_types
    if len(kinds) != dimension:
        raise ArgumentError(f"{len(kinds)} axis_types for {dimension} axes")
    if any(own is _CROSS and k % 2 == 0 for k, own in zip(size, kinds, strict=True)):
        raise ArgumentError(f"a cross of kernel_size {size}: only odd sizes have a center")
    if hybrid:
        return len(_hybrid(size, kinds))
    return sum(size) - dimension + 1 if region_type is _CROSS else math.prod(size)


def convert_region_type(
    region_type: RegionType,
    tensor_stride: Sequence[int],
    kernel_size: Sequence[int],
    up_stride: Sequence[int],
    dilation: Sequence[int],
    region_offset: torch.Tensor | None,
    axis_types: Sequence[RegionType] | None,
    dimension: int,
    center: bool = True,
) -> tuple[RegionType, torch.Tensor, int]:
    """Return a kernel's region type, its custom offsets ``int[K, D]``, and its number of taps.

    A hybrid region becomes a custom region. The offsets of a cube or a cross are an empty tensor.
    Arguments and errors are as in :func:`get_kernel_volume`; the other arguments are unused.
    """
    volume = get_kernel_volume(region_type, kernel_size, region_offset, axis_types, dimension)
    if axis_types is not None:
        size = convert_to_int_list(kernel_size, dimension)
        return RegionType.CUSTOM, torch.IntTensor(_hybrid(size, axis_types)), volume
    return region_type, torch.IntTensor() if region_offset is None else region_offset, volume


class KernelGenerator:
    """Description of a layer's kernel: sizes, taps, and which sites the outputs have.

    Args:
      kernel_size: size along each axis, or one size for all axes.
      stride: ratio of the output's tensor stride to the input's; for a transposed layer, the
        ratio of the input's to the output's.
      dilation: distance of neighboring taps, in steps of the smaller of these tensor strides.
      is_transpose: accepted but unused; the layer decides.
      region_type: shape of the kernel, which defines the taps.
      region_offsets: ``int[K, D]``, the taps of a custom region in steps of the dilation.
        MinkowskiEngine itself has no kernels for custom regions.
      expand_coordinates: whether outputs are at all sites that read an input through a tap.
      axis_types: cube or cross for each axis of a hybrid region.
      dimension: D, the number of spatial axes.

    Raises:
      ArgumentError: as in :func:`get_kernel_volume`, or a stride or dilation is below 1.
    """

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        is_transpose: bool = False,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offsets: torch.Tensor | None = None,
        expand_coordinates: bool = False,
        axis_types: Sequence[RegionType] | None = None,
        dimension: int = -1,
    ) -> None:
        self.dimension = checked_dimension(dimension)
        if not isinstance(region_type, RegionType):
            raise ArgumentError(f"region_type={region_type!r}: expected a RegionType")
        self.kernel_size = positive("kernel_size", kernel_size, dimension)
        self.kernel_stride = positive("stride", stride, dimension)
        self.kernel_dilation = positive("dilation", dilation, dimension)
        self.region_type, self.axis_types = region_type, axis_types
        self.region_offsets = torch.IntTensor() if region_offsets is None else region_offsets
        self.expand_coordinates = expand_coordinates
        self.kernel_volume = get_kernel_volume(
            region_type, self.kernel_size, region_offsets, axis_types, dimension
        )
        self.requires_strided_coordinates = all(step == 1 for step in self.kernel_stride)

    def get_kernel(
        self, tensor_stride: Sequence[int], is_transpose: bool
    ) -> tuple[RegionType, torch.Tensor, int]:
        """Return the result of :func:`convert_region_type` for this kernel.

        The arguments have no effect.
        """
        sizes = tensor_stride, self.kernel_size, self.kernel_stride, self.kernel_dilation
        offsets = self.region_offsets if self.region_type is RegionType.CUSTOM else None
        return convert_region_type(
            self.region_type, *sizes, offsets, self.axis_types, self.dimension
        )

    def kernel(self) -> Kernel:
        """Return the current sizes and region as a hashable :class:`Kernel`."""
        region, own = self.region_type, self.region_offsets
        if region is RegionType.HYBRID:
            region, own, _ = self.get_kernel([1] * self.dimension, False)
        return kernel_of(self.kernel_size, self.kernel_stride, self.kernel_dilation, region, own)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(kernel_size={self.kernel_size}, "
            f"kernel_stride={self.kernel_stride}, kernel_dilation={self.kernel_dilation}, "
            f"region_type={self.region_type}, expand_coordinates={self.expand_coordinates}, "
            f"dimension={self.dimension})"
        )


def generator_of(
    given: KernelGenerator | None, kernel_size: Any, stride: Any, dilation: Any, dimension: Any
) -> KernelGenerator:
    """Return ``given``; if it is None, return a :class:`KernelGenerator` of a box with these sizes.

    ``dimension`` is the number of axes. Raise :class:`ArgumentError` unless it is 1 or more.
    """
    sizes = kernel_size, stride, dilation
    checked_dimension(dimension)
    return KernelGenerator(*sizes, dimension=dimension) if given is None else given


def kernel_of(
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    region: RegionType,
    own: torch.Tensor | None,
) -> Kernel:
    """Return a hashable :class:`Kernel` with these sizes, each with one integer per axis.

    ``own`` has the kernel offsets of a custom region, ``int[K, D]``, in steps of the dilation. It
    is ignored for other regions, which become a cube if all sizes are 1.
    """
    taps: tuple[Ints, ...] = ()
    if region is RegionType.CUSTOM:
        if own is None or own.numel() == 0:
            raise ArgumentError("a region of RegionType.CUSTOM without region_offsets")
        taps = tuple(map(tuple, own.tolist()))
    elif all(k == 1 for k in size):
        region = RegionType.HYPER_CUBE
    return Kernel(tuple(size), tuple(stride), tuple(dilation), region, taps)


class KernelRegion(NamedTuple):
    """Tuple of a kernel's sizes, shape and custom taps in ``D`` dimensions; unused here."""

    kernel_size: Sequence[int]
    kernel_stride: Sequence[int]
    kernel_dilation: Sequence[int]
    region_type: RegionType
    offset: torch.Tensor | None
    D: int
