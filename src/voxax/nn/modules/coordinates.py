"""Modules that combine, select, grow and merge voxels, as the functions of :mod:`voxax` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from voxax import geometry
from voxax._array_types import Array, Bool, Num
from voxax.geometry import KernelShape, Voxels
from voxax.geometry.bev import BevReduction
from voxax.geometry.grow import CoarseReduction
from voxax.geometry.sets import Join, SetReduction
from voxax.nn.arguments import static
from voxax.nn.modules.constructor import CheckedModule

Size = int | Sequence[int]


class _SetOperation(CheckedModule):
    """Base of operations on two sets of voxels.

    Args:
      reduction: how features at the same coordinates are merged, such as ``"sum"``.
      capacity: static number of rows of the result; None as in :func:`voxax.union` or
        :func:`voxax.intersection`.
    """

    FUNCTION: ClassVar[Callable[..., Voxels]]

    def __init__(self, reduction: SetReduction = "sum", *, capacity: int | None = None) -> None:
        self.reduction: SetReduction = reduction
        self.capacity = static(capacity)

    def __call__(self, a: Voxels, b: Voxels) -> Voxels:
        return type(self).FUNCTION(a, b, reduction=self.reduction, capacity=self.capacity)


class Union(_SetOperation):
    """Keep all voxels that at least one of two sets has; see :func:`voxax.union`.

    The constructor takes ``reduction`` and ``capacity``. A call takes the sets ``a`` and ``b``.
    """

    FUNCTION = staticmethod(geometry.union)


class Intersection(_SetOperation):
    """Keep only voxels that two sets share; see :func:`voxax.intersection`.

    The constructor takes ``reduction`` and ``capacity``. A call takes the sets ``a`` and ``b``.
    """

    FUNCTION = staticmethod(geometry.intersection)


class Cat(CheckedModule):
    """Concatenate the channels of several Voxels; see :func:`voxax.cat`.

    The constructor takes ``join`` and ``capacity``. A call takes a list of Voxels.
    """

    def __init__(self, join: Join = "same", *, capacity: int | None = None) -> None:
        self.join: Join = join
        self.capacity = static(capacity)

    def __call__(self, voxels: Sequence[Voxels]) -> Voxels:
        return geometry.cat(voxels, self.join, capacity=self.capacity)


class Inject(CheckedModule):
    """Copy features of voxels to the coordinates of other voxels; see :func:`voxax.inject`.

    The constructor takes no arguments. A call takes ``voxels`` and ``out_voxels``, and returns the
    features of ``voxels`` at the coordinates of ``out_voxels``, zero where missing.
    """

    def __call__(self, voxels: Voxels, out_voxels: Voxels) -> Voxels:
        return geometry.inject(voxels, out_voxels)


class Prune(CheckedModule):
    """Keep only the voxels where a mask is True; see :func:`voxax.prune`.

    The constructor takes ``capacity``. A call takes ``voxels`` and ``mask``.
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = static(capacity)

    def __call__(self, voxels: Voxels, mask: Bool[Array | np.ndarray, " capacity"]) -> Voxels:
        return geometry.prune(voxels, mask, capacity=self.capacity)


class TopK(CheckedModule):
    """Keep the ``k`` voxels of every scene with the highest scores; see :func:`voxax.top_k`.

    The constructor takes ``k`` and ``capacity``. A call takes ``voxels`` and ``scores``.
    """

    def __init__(self, k: int, *, capacity: int | None = None) -> None:
        self.k, self.capacity = static(k), static(capacity)

    def __call__(self, voxels: Voxels, scores: Num[Array | np.ndarray, " capacity"]) -> Voxels:
        return geometry.top_k(voxels, scores, self.k, capacity=self.capacity)


class Crop(CheckedModule):
    """Keep only the voxels inside a fixed box; see :func:`voxax.crop`.

    The constructor takes the arguments of the function except ``voxels``, which a call takes.
    """

    def __init__(self, low: Size, high: Size, *, capacity: int | None = None) -> None:
        self.low, self.high, self.capacity = static(low), static(high), static(capacity)

    def __call__(self, voxels: Voxels) -> Voxels:
        return geometry.crop(voxels, self.low, self.high, capacity=self.capacity)


class Dilate(CheckedModule):
    """Add a voxel at every site that a kernel reaches from a voxel; see :func:`voxax.dilate`.

    The constructor takes the arguments of the function except ``voxels``, which a call takes.
    """

    def __init__(
        self,
        kernel_size: Size = 3,
        *,
        kernel_shape: KernelShape = "box",
        dilation: Size = 1,
        capacity: int | None = None,
    ) -> None:
        self.kernel_size, self.dilation = static(kernel_size), static(dilation)
        self.kernel_shape, self.capacity = static(kernel_shape), static(capacity)

    def __call__(self, voxels: Voxels) -> Voxels:
        return geometry.dilate(
            voxels,
            self.kernel_size,
            kernel_shape=self.kernel_shape,
            dilation=self.dilation,
            capacity=self.capacity,
        )


class Refine(CheckedModule):
    """Split every voxel into ``factor**D`` smaller voxels; see :func:`voxax.refine`.

    The constructor takes ``factor`` and ``capacity``. A call takes ``voxels`` with D axes.
    """

    def __init__(self, factor: Size = 2, *, capacity: int | None = None) -> None:
        self.factor, self.capacity = static(factor), static(capacity)

    def __call__(self, voxels: Voxels) -> Voxels:
        return geometry.refine(voxels, self.factor, capacity=self.capacity)


class Coarsen(CheckedModule):
    """Merge the voxels of every coarse cell into one; see :func:`voxax.coarsen`.

    The constructor takes the arguments of the function except ``voxels``, which a call takes.
    """

    def __init__(
        self,
        factor: Size = 2,
        *,
        reduction: CoarseReduction = "mean",
        capacity: int | None = None,
    ) -> None:
        self.factor, self.capacity = static(factor), static(capacity)
        self.reduction: CoarseReduction = reduction

    def __call__(self, voxels: Voxels) -> Voxels:
        return geometry.coarsen(
            voxels, self.factor, reduction=self.reduction, capacity=self.capacity
        )


class ToBEV(CheckedModule):
    """Merge every column of voxels along an axis into one voxel; see :func:`voxax.to_bev`.

    The constructor takes the arguments of the function except ``voxels``, which a call takes.
    """

    def __init__(
        self,
        axis: int = -1,
        *,
        reduction: BevReduction = "sum",
        extent: Sequence[int] | None = None,
        capacity: int | None = None,
    ) -> None:
        self.axis, self.extent, self.capacity = axis, static(extent), static(capacity)
        self.reduction: BevReduction = reduction

    def __call__(self, voxels: Voxels) -> Voxels:
        return geometry.to_bev(
            voxels,
            self.axis,
            reduction=self.reduction,
            extent=self.extent,
            capacity=self.capacity,
        )


class Batch(CheckedModule):
    """Join Voxels of several scenes into one batch; see :func:`voxax.batch`.

    The constructor takes ``capacity``. A call takes a list of Voxels.
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = static(capacity)

    def __call__(self, scenes: Sequence[Voxels]) -> Voxels:
        return geometry.batch(scenes, capacity=self.capacity)
