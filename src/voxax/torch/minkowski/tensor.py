"""Define the common base of sparse tensors and tensor fields: features with a coordinate key."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Self

import torch

from voxax.torch.core.errors import ArgumentError, check_device, check_features, check_rows
from voxax.torch.core.features import Features
from voxax.torch.minkowski.constants import SparseTensorQuantizationMode
from voxax.torch.minkowski.manager import CoordinateManager, Key, new_manager

COORDINATE_MANAGER_DIFFERENT_ERROR = (
    "tensors of two coordinate managers: make the second with coordinate_manager= of the first, or "
    "call set_sparse_tensor_operation_mode(SparseTensorOperationMode.SHARE_COORDINATE_MANAGER)"
)
COORDINATE_KEY_DIFFERENT_ERROR = "tensors on other sites: their coordinate map keys differ, "


def check_tensor(input: Any, channels: int | None = None) -> None:
    """Raise :class:`ArgumentError` unless ``input`` is a tensor or field of ``channels`` channels.

    None as ``channels`` accepts any number.
    """
    if not isinstance(input, Tensor):
        raise ArgumentError(f"{type(input).__name__}: expected a SparseTensor or a TensorField")
    if channels is not None:
        check_features(input._F, len(input._F), channels)


def _binary(function: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._binary_functor(other, function)


def _update(function: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self._updated(other, function)


class Tensor:
    """Base of sparse tensors and fields: features, and the key of their coordinates in a manager.

    Features ``F[i]`` are at coordinates ``C[i]``. Writing into ``C``, a copy, moves no features.
    """

    _features: Features
    _C: torch.Tensor | None
    _key: Key
    _manager: CoordinateManager
    quantization_mode: SparseTensorQuantizationMode

    def _begin(
        self, features: Any, coordinates: Any, key: Key | None, manager: Any, mode: Any, device: Any
    ) -> None:
        """Check a constructor's arguments; store the coordinate manager and quantization mode.

        Either ``coordinates``, or ``key`` with its ``manager``, must be given. Without a manager,
        a new one is made.
        """
        if not isinstance(features, torch.Tensor) or features.ndim != 2:
            shape = getattr(features, "shape", type(features).__name__)
            raise ArgumentError(f"features of shape {shape}: expected a tensor [N, C]")
        if device is not None:
            check_device(device)
        if not isinstance(mode, SparseTensorQuantizationMode):
            raise ArgumentError(f"{mode!r}: expected a SparseTensorQuantizationMode")
        if (coordinates is None) == (key is None):
            raise ArgumentError("give coordinates, or a coordinate map key with its manager")
        if key is not None and manager is None:
            raise ArgumentError("a coordinate map key without coordinate_manager")
        if coordinates is not None:
            if not isinstance(coordinates, torch.Tensor) or coordinates.ndim != 2:
                raise ArgumentError("coordinates: expected a tensor [N, 1 + D], batch index first")
            if manager is None:
                manager = new_manager(coordinates.shape[1] - 1)
            check_rows(features, len(coordinates))
        if not isinstance(manager, CoordinateManager):
            raise ArgumentError(f"coordinate_manager of {type(manager)}")
        if key is not None:
            check_rows(features, manager.size(key))
        self._manager, self.quantization_mode = manager, mode

    def _hold(self, features: torch.Tensor, key: Key, requires_grad: bool | None = None) -> None:
        if requires_grad is not None:
            features.requires_grad_(requires_grad)
        self._features, self._C, self._key = Features(features), None, key

    def replaced(self, features: torch.Tensor) -> Self:
        """Return a tensor with other features on the same sites or points."""
        if len(features) != len(self._F):
            raise ArgumentError(f"{len(features)} rows of features for {len(self._F)} sites")
        return self._with(_features=Features(features))

    def _with(self, **state: Any) -> Self:
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__, **state)
        return made

    # Features, and operations that may wait until the features are needed.

    @property
    def _F(self) -> torch.Tensor:
        """The features ``[N, C]`` for layers, which must not write into them."""
        return self._features.rows()

    @_F.setter
    def _F(self, features: torch.Tensor) -> None:
        self._features = Features(features)

    features = F = property(lambda self: self._features.shown(), doc="``[N, C]``.")

    def normalized(self, norm: Any) -> Self:
        """Return a tensor with the features after the batch norm ``norm``.

        The features are computed immediately, or when code first reads them.
        """
        found = self._features.normalized(norm)
        return self.replaced(norm(self.F)) if found is None else self._with(_features=found)

    def rectified(self, relu: Callable[[torch.Tensor], torch.Tensor], inplace: bool) -> Self:
        """Return a tensor with the features after ``relu``, which is PyTorch's ReLU function.

        If the features are the result of a delayed batch norm, the ReLU is computed together with
        it, and ``relu`` is not called. ``inplace`` then decides whether this tensor's features
        change too.
        """
        found = self._features.rectified(inplace)
        return self.replaced(relu(self.F)) if found is None else self._with(_features=found)

    # Sites or points of the features.

    coordinate_manager = property(lambda self: self._manager, doc="The coordinates' manager.")
    coordinate_key = property(lambda self: self._key, doc="The key of the sites or points.")
    tensor_stride = property(
        lambda self: self._key.get_tensor_stride(), doc="Distance of neighbors on each axis."
    )
    D = _D = dimension = property(lambda self: self._manager.D, doc="Number of spatial axes, D.")

    def _get_coordinates(self) -> torch.Tensor:
        return self._manager.get_coordinates(self._key)

    @property
    def coordinates(self) -> torch.Tensor:
        """Coordinates ``[N, 1 + D]``, batch index first."""
        if self._C is None:
            self._C = self._get_coordinates()
        return self._C

    C = coordinates

    decomposition_permutations = _batchwise_row_indices = _sorted_batchwise_row_indices = property(
        lambda self: self._manager.origin_map(self._key)[1],
        doc="The rows of each batch index, ``int64[n]``.",
    )
    decomposed_coordinates = property(
        lambda self: [self.C[rows, 1:] for rows in self._batchwise_row_indices],
        doc="The coordinates of each batch index, ``[n, D]``.",
    )
    decomposed_features = property(
        lambda self: [self._F[rows] for rows in self._batchwise_row_indices],
        doc="The features of each batch index, ``[n, C]``.",
    )
    decomposed_coordinates_and_features = property(
        lambda self: (self.decomposed_coordinates, self.decomposed_features),
        doc="Both of each batch index.",
    )

    def coordinates_at(self, batch_index: int) -> torch.Tensor:
        """Return the coordinates of one batch index, ``[n, D]``."""
        return self.C[self._batchwise_row_indices[batch_index], 1:]

    def features_at(self, batch_index: int) -> torch.Tensor:
        """Return the features of one batch index, ``[n, C]``."""
        return self._F[self._batchwise_row_indices[batch_index]]

    def coordinates_and_features_at(self, batch_index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the coordinates and the features of one batch index."""
        return self.coordinates_at(batch_index), self.features_at(batch_index)

    # Attributes and methods of a PyTorch tensor.

    requires_grad = property(
        lambda self: self._F.requires_grad, doc="Whether the features ask for a gradient."
    )
    shape = property(lambda self: self._F.shape, doc="The shape of the features.")
    device = property(lambda self: self._F.device, doc="The CPU.")
    dtype = property(lambda self: self._F.dtype, doc="The dtype of the features.")

    def requires_grad_(self, requires_grad: bool = True) -> None:
        """Set whether the features require a gradient."""
        self.F.requires_grad_(requires_grad)

    def float(self) -> Self:
        """Convert the features of this tensor to float32, in place."""
        self._F = self.F.float()
        return self

    def double(self) -> Self:
        """Convert the features of this tensor to float64, in place."""
        self._F = self.F.double()
        return self

    def detach(self) -> Self:
        """Detach the features of this tensor from their gradient, in place."""
        self._F = self.F.detach()
        return self

    def __len__(self) -> int:
        return len(self._F)

    def size(self) -> torch.Size:
        """Return the shape ``[N, C]`` of the features."""
        return self._F.size()

    def get_device(self) -> int:
        """Return -1, PyTorch's device number of the CPU."""
        return self._F.get_device()

    # Arithmetic.

    def _is_same_key(self, other: Any) -> None:
        """Raise :class:`ArgumentError` unless ``other`` has the same manager and key."""
        if not isinstance(other, type(self)):
            raise ArgumentError(f"{type(self).__name__} with {type(other).__name__}")
        if self._manager is not other._manager:
            raise ArgumentError(COORDINATE_MANAGER_DIFFERENT_ERROR)
        if self._key != other._key:
            raise ArgumentError(f"{COORDINATE_KEY_DIFFERENT_ERROR}{self._key} and {other._key}")

    def _check_channels(self, other: Self) -> None:
        mine, theirs = self._F.shape[1], other._F.shape[1]
        if mine != theirs and 1 not in (mine, theirs):
            raise ArgumentError(f"tensors of {mine} and {theirs} channels")

    def _updated(self, other: Any, function: Callable[[Any, Any], torch.Tensor]) -> Self:
        self._is_same_key(other)
        if function is operator.iadd and self._features.added(other._features, True) is not None:
            return self
        self._check_channels(other)
        self._F = function(self.F, other._F)
        return self

    def _joined(self, other: Self, function: Callable[[Any, Any], torch.Tensor]) -> Self:
        """Combine two tensors with different sites on the union of their sites.

        A site of ``other`` has ``function`` of both features, where a site that this tensor lacks
        counts as 0. A site of only this tensor keeps its features. Fields raise an error.
        """
        self._is_same_key(other)
        raise AssertionError("unreachable")

    def _binary_functor(self, other: Any, binary_fn: Callable[[Any, Any], torch.Tensor]) -> Self:
        if isinstance(other, type(self)):
            if self._manager is not other._manager:
                raise ArgumentError(COORDINATE_MANAGER_DIFFERENT_ERROR)
            if binary_fn is operator.add and self._key == other._key:
                found = self._features.added(other._features)
                if found is not None:
                    return self._with(_features=found)
            self._check_channels(other)
            if self._key != other._key:
                return self._joined(other, binary_fn)
            other = other._F
        elif not isinstance(other, torch.Tensor | int | float):
            raise ArgumentError(f"{type(self).__name__} with {type(other).__name__}")
        return self.replaced(binary_fn(self._F, other))

    __add__, __iadd__ = _binary(operator.add), _update(operator.iadd)
    __sub__, __isub__ = _binary(operator.sub), _update(operator.isub)
    __mul__, __imul__ = _binary(operator.mul), _update(operator.imul)
    __truediv__, __itruediv__ = _binary(operator.truediv), _update(operator.itruediv)

    def __pow__(self, power: Any) -> Self:
        return self.replaced(self._F**power)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(\n  coordinates={self.C}\n  features={self.F}\n  "
            f"key={self._key}\n  coordinate_manager={self._manager}\n  spatial dimension={self.D})"
        )
