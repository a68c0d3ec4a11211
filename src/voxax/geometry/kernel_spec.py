"""KernelSpec: the static part of a convolution's kernel map (taps, stride, dilation)."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from voxax.coords import box_offsets, cross_offsets, is_point_symmetric
from voxax.errors import InputError
from voxax.geometry.call_checks import axes_hint

KernelShape = Literal["box", "cross"] | Sequence[Sequence[int]]
"""Which taps a kernel has: a box, a cross within the box, or custom offsets ``int[K, D]``."""

LONGEST_REACH = 2**28
"""The limit of strides and of offset times dilation, so that int32 sums cannot wrap around."""


MOST_TAPS = 2**16
"""The largest number of taps of a box. Each tap has a weight matrix, so more are a mistake."""


def per_axis(value: int | Sequence[int], ndim: int, name: str) -> tuple[int, ...]:
    """Return ``ndim`` positive integers from one integer, or from a sequence of ``ndim`` integers.

    Raises:
      InputError: ``value`` is not an integer or a sequence of integers, has another length, or is
        below 1. The message begins with ``name``, the name of the argument.
    """
    try:
        values = (operator.index(value),) * ndim  # type: ignore[arg-type]
    except TypeError:
        try:
            values = tuple(operator.index(v) for v in value)  # type: ignore[union-attr]
        except TypeError as error:
            raise InputError(
                f"{name}={value!r} is no whole number: give an integer, or one for each of the "
                f"{ndim} axes"
            ) from error
    if len(values) != ndim:
        hint = axes_hint(len(values), ndim)
        raise InputError(f"{name}={values} has {len(values)} entries for {ndim} spatial axes{hint}")
    if any(v < 1 for v in values):
        raise InputError(f"{name}={values} must be at least 1 along every axis")
    return values


@functools.lru_cache(maxsize=1024)  # called in every eager call of a layer
def _reach(offsets: tuple[tuple[int, ...], ...], dilation: tuple[int, ...]) -> int:
    return max(abs(o) * d for offset in offsets for o, d in zip(offset, dilation, strict=True))


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """A static, hashable description of the input sites that each output site reads.

    ``weight[k]`` multiplies the input at ``out * stride + offsets[k] * dilation``
    (cross-correlation). With ``transposed``, inputs and outputs of this relation are exchanged.

    Attributes:
      offsets: K tuples of D integers, one for each tap. Those of a box or a cross are in
        lexicographic order, last axis fastest; custom offsets stay in the given order.
      stride: D integers >= 1.
      dilation: D integers >= 1.
      transposed: True if inputs are the coarse side and outputs the fine side.
      generative: True if the outputs are all sites that a tap reaches from an input.
      spatial_shape: sizes n of the input's dense grid ``[0, n)``. Outputs of a generative map
        outside the grid of the corresponding dense convolution are left out. None has no grid.
    """

    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    generative: bool = False
    spatial_shape: tuple[int, ...] | None = None

    @classmethod
    def make(
        cls,
        ndim: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        transposed: bool = False,
        generative: bool = False,
        *,
        kernel_shape: KernelShape = "box",
        spatial_shape: int | Sequence[int] | None = None,
    ) -> KernelSpec:
        """Make a spec from a kernel size or from custom offsets.

        Args:
          ndim: number of spatial axes, D.
          kernel_size, stride, dilation: one integer for all axes, or one per axis.
          transposed, generative: see the attributes.
          kernel_shape: ``"box"``, all offsets of the box ``kernel_size``; ``"cross"``, the offsets
            of the box that differ from the center along one axis at most; or custom offsets
            ``int[K, D]``, for which ``kernel_size`` is ignored.
          spatial_shape: see the attributes.

        Raises:
          InputError: a size is below 1, the box has more than 2**16 taps, a sequence does not have
            ``ndim`` entries, custom offsets are not distinct, an offset times dilation or a
            stride is beyond 2**28, or ``spatial_shape`` is given without ``generative``.
        """
        strides = per_axis(stride, ndim, "stride")
        if isinstance(kernel_shape, str):
            size = per_axis(kernel_size, ndim, "kernel_size")
            if kernel_shape not in ("box", "cross"):
                raise InputError(
                    f"unknown kernel_shape {kernel_shape!r}; known: "
                    "box, cross, or custom offsets int[K, D]"
                )
            if math.prod(size) > MOST_TAPS:
                raise InputError(
                    f"kernel_size={size} has {math.prod(size)} taps, at most {MOST_TAPS}: far "
                    "voxels are reached by dilation=, or by strided layers"
                )
            offsets = (box_offsets if kernel_shape == "box" else cross_offsets)(size, strides)
        else:
            offsets = custom_offsets(kernel_shape, ndim)
        dilated = per_axis(dilation, ndim, "dilation")
        reach = _reach(offsets, dilated)
        if max(reach, *strides) > LONGEST_REACH:
            raise InputError(
                f"a kernel that reaches {reach} cells with stride {strides}: both are limited to "
                f"2**28 = {LONGEST_REACH}, so that 32-bit coordinates cannot wrap around"
            )
        shape = None if spatial_shape is None else per_axis(spatial_shape, ndim, "spatial_shape")
        if shape is not None and not generative:
            raise InputError(
                f"spatial_shape={shape} clips the outputs of a generative map: add "
                "generative=True, or leave it out"
            )
        return cls(offsets, strides, dilated, bool(transposed), bool(generative), shape)

    @property
    def ndim(self) -> int:
        """Number of spatial axes, D."""
        return len(self.stride)

    @property
    def num_offsets(self) -> int:
        """K, the number of taps."""
        return len(self.offsets)

    @property
    def partitions(self) -> bool:
        """Whether the kernel is a box as large as its stride: each input is read by one output."""
        if self.transposed or set(self.dilation) != {1}:
            return False
        # Compare the counts first: the box of a stride of 2**20 would not fit into memory.
        known = self.num_offsets == math.prod(self.stride)
        return known and self.offsets == box_offsets(self.stride, self.stride)

    @property
    def keeps_coords(self) -> bool:
        """Whether outputs have the coordinates of the inputs: stride 1 and not generative."""
        return not self.generative and all(s == 1 for s in self.stride)

    @property
    def symmetric(self) -> bool:
        """Whether tap ``K - 1 - k`` has the negative offset of tap k, as centered kernels have."""
        return is_point_symmetric(self.offsets)

    @property
    def dilated_offsets(self) -> np.ndarray:
        """``int[K, D]``: offsets times dilation."""
        return np.asarray(self.offsets) * np.asarray(self.dilation)

    @property
    def relation(self) -> KernelSpec:
        """This spec without ``generative`` and ``spatial_shape``, which select the output voxels.

        Specs with equal ``relation`` give the same map between two given sets of voxels.
        """
        return dataclasses.replace(self, generative=False, spatial_shape=None)

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Sizes m of the output grid ``[0, m)``, or None without ``spatial_shape``.

        They follow the rule of dense convolutions for n input sites, kernel size k, stride s and
        dilation d: ``(n + 2 p - d (k - 1) - 1) // s + 1``, or ``(n - 1) s - 2 p + d (k - 1) + 1``
        when transposed. The padding p is the distance of the lowest dilated offset below zero, or 0
        if no offset is negative.
        """
        if self.spatial_shape is None:
            return None
        taps = self.dilated_offsets
        low, high = taps.min(0), taps.max(0)
        extent = np.asarray(self.spatial_shape)
        step = np.asarray(self.stride)
        padding = np.maximum(-low, 0)
        if self.transposed:
            shape = (extent - 1) * step - 2 * padding + (high - low) + 1
        else:
            shape = (extent + 2 * padding - (high - low) - 1) // step + 1
        return tuple(int(n) for n in np.maximum(shape, 0))

    def adjoint(self) -> KernelSpec:
        """Return the spec with inputs and outputs exchanged (``transposed`` inverted)."""
        return dataclasses.replace(self, transposed=not self.transposed)

    def __str__(self) -> str:
        size = np.ptp(np.asarray(self.offsets), axis=0) + 1
        box = "x".join(map(str, size))
        words = [box if np.prod(size) == self.num_offsets else f"{self.num_offsets} taps in {box}"]
        words += [f"stride {self.stride}"] if any(s != 1 for s in self.stride) else []
        words += [f"dilation {self.dilation}"] if any(d != 1 for d in self.dilation) else []
        words += ["transposed"] if self.transposed else []
        words += ["generative"] if self.generative else []
        words += [f"within {self.spatial_shape}"] if self.spatial_shape is not None else []
        return ", ".join(words)


def custom_offsets(offsets: Any, ndim: int) -> tuple[tuple[int, ...], ...]:
    """Check custom kernel offsets ``int[K, D]`` and return them as tuples.

    Raises:
      InputError: the offsets have another shape or no row, are no integers, or are not distinct.
    """
    array = np.asarray(offsets)
    if array.ndim != 2 or array.shape[1] != ndim or not len(array):
        raise InputError(
            f"custom kernel offsets of shape {array.shape}: expected int[K, {ndim}] with K >= 1"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"custom kernel offsets must be integers, got {array.dtype}")
    rows = tuple(tuple(row) for row in array.tolist())
    if len(set(rows)) != len(rows):
        twice = next(row for i, row in enumerate(rows) if row in rows[:i])
        raise InputError(f"custom kernel offset {twice} is given twice: offsets must be distinct")
    return rows


def static_shape(kernel_shape: KernelShape) -> KernelShape:
    """Return a hashable form of the kernel shape: its name, or tuples of integers."""
    if isinstance(kernel_shape, str):
        return kernel_shape
    array = np.asarray(kernel_shape)
    return custom_offsets(array, array.shape[-1])
