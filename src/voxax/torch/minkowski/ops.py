"""Combine tensors on the same sites, convert from and to dense tensors, apply linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.features import Features
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.sparse_tensor import SparseTensor
from voxax.torch.minkowski.tensor import Tensor, check_tensor
from voxax.torch.minkowski.tensor_field import TensorField


class MinkowskiLinear(nn.Module):
    """Linear layer on a tensor's features; the attribute ``linear`` is PyTorch's layer."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias)

    def forward(self, input: Any) -> Any:
        """Return a tensor or a field with the linear layer's output on the same sites."""
        check_tensor(input, self.linear.in_features)
        return input.replaced(self.linear(input.F))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.linear.extra_repr()})"


def _joined(tensors: Any, function: Callable[[list[torch.Tensor]], torch.Tensor]) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = tensors[0]
    if len(tensors) < 2 or not isinstance(tensors[0], Tensor):
        raise ArgumentError("expected two or more sparse tensors, or fields, on the same sites")
    for tensor in tensors:
        tensors[0]._is_same_key(tensor)
    # The results are new memory.
    rows = function([tensor._F for tensor in tensors])
    return tensors[0]._with(_features=Features(rows, own=True))


def _average(parts: list[torch.Tensor]) -> torch.Tensor:
    return sum(parts[1:], parts[0]) / len(parts)


def cat(*sparse_tensors: Any) -> Any:
    """Return a tensor or a field with the channels of all arguments, which have the same sites."""
    return _joined(sparse_tensors, lambda parts: torch.cat(parts, dim=-1))


def _sum(*sparse_tensors: Any) -> Any:
    """Return the sum of tensors or fields on the same sites."""
    return _joined(sparse_tensors, lambda parts: sum(parts[1:], parts[0]))


def mean(*sparse_tensors: Any) -> Any:
    """Return the mean, element by element, of tensors or fields on the same sites."""
    return _joined(sparse_tensors, _average)


def var(*sparse_tensors: Any) -> Any:
    """Return the biased variance, element by element, of tensors or fields on the same sites."""

    def spread(parts: list[torch.Tensor]) -> torch.Tensor:
        center = _average(parts)
        return _average([(part - center) ** 2 for part in parts])

    return _joined(sparse_tensors, spread)


def dense_coordinates(shape: Any) -> torch.Tensor:
    """Return the coordinates of all cells of a dense tensor, ``int32[B * cells, 1 + D]``.

    ``shape`` is that of the tensor, ``[B, C, *spatial]``, with D spatial sizes. The columns are the
    batch index, then the D coordinates. The last coordinate varies fastest.
    """
    if len(shape) < 3:
        raise ArgumentError(f"shape {tuple(shape)}: expected [B, C, *spatial]")
    cells = np.indices((shape[0], *shape[2:]), np.int32)
    return torch.from_numpy(np.ascontiguousarray(cells.reshape(len(shape) - 1, -1).T))


def to_sparse(
    x: torch.Tensor, format: str | None = None, coordinates: Any = None, device: Any = None
) -> SparseTensor:
    """Convert a dense tensor to a sparse tensor of the cells in which some channel is not 0.

    Args:
      x: dense tensor ``[B, C, *spatial]``, or with another order of axes.
      format: letters of the axes of ``x``: ``B`` first, one ``C``, and ``X`` for each spatial axis.
        None means ``[B, C, *spatial]``.
      coordinates: accepted but unused.
      device: the CPU, or None.

    Raises:
      ArgumentError: ``x`` has no spatial axes, or ``format`` does not describe its axes.
    """
    if x.ndim < 3:
        raise ArgumentError(f"a dense tensor of shape {tuple(x.shape)}: expected spatial axes")
    format = "BC" + "X" * (x.ndim - 2) if format is None else format
    if len(format) != x.ndim or format[0] != "B" or format.count("B") != 1 != format.count("C"):
        raise ArgumentError(f"format={format!r}: expected {x.ndim} letters, B first and one C")
    rows = x.movedim(format.index("C"), -1)
    filled = (rows != 0).any(-1)
    return SparseTensor(rows[filled], coordinates=torch.nonzero(filled).int(), device=device)


def to_sparse_all(
    dense_tensor: torch.Tensor, coordinates: torch.Tensor | None = None
) -> SparseTensor:
    """Convert a dense tensor to a sparse tensor of all cells, including zeros.

    Args:
      dense_tensor: ``[B, C, *spatial]``.
      coordinates: ``int32[B * cells, 1 + D]``, coordinates of the cells; None takes their indices.

    Raises:
      ArgumentError: there are no spatial axes, or not as many coordinates as cells.
    """
    if coordinates is None:
        coordinates = dense_coordinates(dense_tensor.shape)
    rows = dense_tensor.movedim(1, -1).reshape(-1, dense_tensor.shape[1])
    return SparseTensor(rows, coordinates=coordinates)


class MinkowskiToSparseTensor(MinkowskiModuleBase):
    """Layer that converts a field, or a dense tensor ``[B, C, *spatial]``, to a sparse tensor.

    ``remove_zeros`` leaves out the cells of a dense tensor that are 0. It has no effect if
    ``coordinates int32[B * cells, 1 + D]`` of the cells are given.
    """

    def __init__(self, remove_zeros: bool = True, coordinates: torch.Tensor | None = None) -> None:
        super().__init__()
        self.remove_zeros, self.coordinates = remove_zeros, coordinates

    def forward(self, input: Any) -> SparseTensor:
        """Return the input as a sparse tensor."""
        if isinstance(input, TensorField):
            return input.sparse()
        if not isinstance(input, torch.Tensor):
            raise ArgumentError(f"{type(input).__name__}: expected a TensorField or a torch.Tensor")
        if self.remove_zeros and self.coordinates is None:
            return to_sparse(input)
        return to_sparse_all(input, self.coordinates)


class MinkowskiToDenseTensor(MinkowskiModuleBase):
    """Layer that converts a sparse tensor to a dense tensor ``[B, C, *spatial]``.

    ``shape`` is the shape of the dense tensor. None takes the smallest that has all coordinates.
    """

    def __init__(self, shape: torch.Size | None = None) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, input: SparseTensor) -> torch.Tensor:
        """Return ``input`` as a dense tensor ``[B, C, *spatial]``."""
        return input.dense(shape=self.shape)[0]


class MinkowskiToFeature(MinkowskiModuleBase):
    """Layer that returns the features of a sparse tensor or a field."""

    def forward(self, x: Any) -> torch.Tensor:
        """Return the features, ``[N, C]``."""
        check_tensor(x)
        return x.F


class _Stack(nn.Sequential):
    _JOIN: Any

    def forward(self, x: Any) -> Any:
        """Return the outputs of all modules for ``x``, combined by the subclass.

        A subclass concatenates the outputs' channels, or returns their sum, mean or variance.
        """
        return self._JOIN([module(x) for module in self])


class MinkowskiStackCat(_Stack):
    """Layer that applies several modules to one input and concatenates their output channels."""

    _JOIN = staticmethod(cat)


class MinkowskiStackSum(_Stack):
    """Layer that applies several modules to one input and returns the sum of their outputs."""

    _JOIN = staticmethod(_sum)


class MinkowskiStackMean(_Stack):
    """Layer that applies several modules to one input and returns the mean of their outputs."""

    _JOIN = staticmethod(mean)


class MinkowskiStackVar(_Stack):
    """Layer that applies several modules to one input and returns the variance of their outputs."""

    _JOIN = staticmethod(var)
