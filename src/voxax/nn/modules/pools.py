"""Modules that pool voxels, undo the pooling, and fold blocks of voxels into channels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from voxax._array_types import Array, Int, Num
from voxax.geometry import KernelMap, KernelShape, Voxels
from voxax.geometry.kernel_spec import static_shape
from voxax.nn import functional
from voxax.nn.arguments import static
from voxax.nn.functional.pooling import Size
from voxax.nn.modules.constructor import CheckedModule


class _Window(CheckedModule):
    """Base class of pooling and unpooling. Arguments as in :func:`voxax.nn.functional.sum_pool`."""

    def __init__(
        self,
        kernel_size: Size = 2,
        stride: Size | None = None,
        dilation: Size = 1,
        *,
        kernel_shape: KernelShape = "box",
    ) -> None:
        self.kernel_size, self.stride = static(kernel_size), static(stride)
        self.dilation = static(dilation)
        self.kernel_shape: KernelShape = static_shape(kernel_shape)


class _Pool(_Window):
    """Base of modules that reduce the voxels of each window to one voxel.

    Args:
      kernel_size: cells of the window along each axis, an integer or one per axis.
      dilation: input cells from one cell of the window to the next, an integer or one per axis.
      stride: input cells per output cell; None is ``kernel_size``.
      kernel_shape, generative: as in :func:`voxax.nn.functional.sum_pool`.
      capacity: static number of rows of new output voxels. None takes the capacity that
        :func:`voxax.plan` gave this level. Without a plan, None takes the input's capacity, or with
        ``generative`` counts the new voxels, which needs an eager call.
    """

    FUNCTION: ClassVar[Any]

    def __init__(
        self,
        kernel_size: Size = 2,
        stride: Size | None = None,
        dilation: Size = 1,
        *,
        kernel_shape: KernelShape = "box",
        generative: bool = False,
        capacity: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, dilation, kernel_shape=kernel_shape)
        self.generative, self.capacity = generative, static(capacity)

    def __call__(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None = None,
        *,
        kernel_map: KernelMap | None = None,
    ) -> Voxels:
        return self._pooled(voxels, out_voxels, kernel_map)

    def _pooled(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None,
        kernel_map: KernelMap | None,
        **options: Any,
    ) -> Any:
        if kernel_map is not None:
            given = {"kernel_map": kernel_map, "out_voxels": out_voxels}
            return type(self).FUNCTION(voxels, **given, **options)
        return type(self).FUNCTION(
            voxels,
            self.kernel_size,
            self.stride,
            self.dilation,
            kernel_shape=self.kernel_shape,
            generative=self.generative,
            out_voxels=out_voxels,
            capacity=self.capacity,
            **options,
        )


class MaxPool(_Pool):
    """Maximum over the voxels of each window; see :func:`voxax.nn.functional.max_pool`.

    The constructor takes ``kernel_size``, ``stride``, ``dilation``, ``kernel_shape``,
    ``generative`` and ``capacity``. A call takes the other arguments of the function. With
    ``return_indices=True`` it also returns the indices that :class:`Unpool` takes.

    Examples:
      >>> modules.MaxPool(2)(voxels).stride
      (2, 2, 2)
    """

    FUNCTION = staticmethod(functional.max_pool)

    def __call__(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None = None,
        *,
        kernel_map: KernelMap | None = None,
        return_indices: bool = False,
    ) -> Any:
        return self._pooled(voxels, out_voxels, kernel_map, return_indices=return_indices)


class MinPool(_Pool):
    """Minimum over the voxels of each window; see :func:`voxax.nn.functional.min_pool`.

    Arguments of constructor and call as for :class:`MaxPool`, without ``return_indices``.
    """

    FUNCTION = staticmethod(functional.min_pool)


class MeanPool(_Pool):
    """Mean over the voxels of each window; see :func:`voxax.nn.functional.mean_pool`.

    Arguments of constructor and call as for :class:`MaxPool`, without ``return_indices``.

    Examples:
      >>> modules.MeanPool(3, stride=2)(voxels).stride
      (2, 2, 2)
    """

    FUNCTION = staticmethod(functional.mean_pool)


class SumPool(_Pool):
    """Sum over the voxels of each window; see :func:`voxax.nn.functional.sum_pool`.

    Arguments of constructor and call as for :class:`MaxPool`, without ``return_indices``.
    """

    FUNCTION = staticmethod(functional.sum_pool)


class Unpool(_Window):
    """Copy pooled features to the voxels before pooling; see :func:`voxax.nn.functional.unpool`.

    The constructor takes ``kernel_size``, ``stride``, ``dilation`` and ``kernel_shape`` of the
    pooling. A call takes ``voxels``, ``out_voxels`` and ``indices``.
    """

    def __call__(
        self, voxels: Voxels, out_voxels: Voxels, indices: Int[Array, "capacity C"] | None = None
    ) -> Voxels:
        return functional.unpool(
            voxels,
            out_voxels,
            indices,
            self.kernel_size,
            self.stride,
            self.dilation,
            kernel_shape=self.kernel_shape,
        )


class _Blocks(CheckedModule):
    """Base of modules that fold blocks of voxels into channels, or back.

    Args:
      factor: edge of a block in voxels, an integer or one per axis.
      capacity: static number of rows of the result; for None see the function that the subclass
        calls.
    """

    def __init__(self, factor: Size = 2, *, capacity: int | None = None) -> None:
        self.factor, self.capacity = static(factor), static(capacity)


class SpaceToChannel(_Blocks):
    """Fold blocks of voxels into channels; see :func:`voxax.nn.functional.space_to_channel`.

    The constructor takes ``factor`` and ``capacity``. A call takes ``voxels``.
    """

    def __call__(self, voxels: Voxels) -> Voxels:
        return functional.space_to_channel(voxels, self.factor, capacity=self.capacity)


class ChannelToSpace(_Blocks):
    """Unfold channels into blocks of voxels; see :func:`voxax.nn.functional.channel_to_space`.

    The constructor takes ``factor`` and ``capacity``. A call takes ``voxels`` and ``out_voxels``.
    If ``out_voxels`` are given, ``capacity`` is not used.
    """

    def __call__(self, voxels: Voxels, out_voxels: Voxels | None = None) -> Voxels:
        capacity = self.capacity if out_voxels is None else None
        return functional.channel_to_space(voxels, self.factor, out_voxels, capacity=capacity)


class GlobalPool(CheckedModule):
    """Reduce each scene to one row of features; see :func:`voxax.nn.functional.global_pool`.

    The constructor takes ``reduction``. A call takes ``voxels``, and returns ``[batch_size, C]``.

    Examples:
      >>> modules.GlobalPool("max")(voxels).shape
      (1, 4)
    """

    def __init__(self, reduction: Literal["mean", "sum", "max", "min"] = "mean") -> None:
        self.reduction: Literal["mean", "sum", "max", "min"] = reduction

    def __call__(self, voxels: Voxels) -> Num[Array, "B C"]:
        return functional.global_pool(voxels, self.reduction)
