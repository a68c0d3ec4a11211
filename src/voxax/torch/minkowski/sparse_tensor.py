"""Define MinkowskiEngine's SparseTensor: features on sites (voxels)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.arguments import convert_to_int_list, floored
from voxax.torch.minkowski.constants import SparseTensorQuantizationMode as Mode
from voxax.torch.minkowski.manager import CoordinateManager, Key
from voxax.torch.minkowski.reduction import grouped, reduced
from voxax.torch.minkowski.sparse_matrix import interpolated, spmm
from voxax.torch.minkowski.tensor import Tensor

SLICEABLE = Mode.RANDOM_SUBSAMPLE, Mode.UNWEIGHTED_AVERAGE


class SparseTensor(Tensor):
    """Sparse tensor: one row of features for each of several distinct sites (voxels).

    Sites are in the order of their first rows in the coordinates.

    Args:
      features: ``float[N, C]``.
      coordinates: ``int32[N, 1 + D]``, batch index first; other dtypes are rounded down.
      tensor_stride: distance of neighboring sites, one integer for all axes or one per axis.
      coordinate_map_key, coordinate_manager: key of known sites and its manager, in place of
        coordinates; or only a manager, in which to insert the coordinates.
      quantization_mode: how several rows of one site become one row.
      allocator_type, minkowski_algorithm: options of GPUs, accepted but unused.
      requires_grad: whether the features require a gradient; None leaves this as it is.
      device: the CPU, or None.

    Attributes:
      unique_index: ``int64[M]``, the first row of each site.
      inverse_mapping: ``int64[N]``, the site of each row.

    Raises:
      ArgumentError: an argument has a wrong shape, dtype or device, or several rows are one site
        and the quantization mode is no reduction.
    """

    unique_index: torch.Tensor
    inverse_mapping: torch.Tensor
    FIELD: ClassVar[Any] = None  # set by the module of fields, which imports this one

    def __init__(
        self,
        features: torch.Tensor,
        coordinates: torch.Tensor | None = None,
        tensor_stride: Any = 1,
        coordinate_map_key: Key | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.RANDOM_SUBSAMPLE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: Any = None,
    ) -> None:
        key = coordinate_map_key
        self._begin(features, coordinates, key, coordinate_manager, quantization_mode, device)
        if coordinates is not None:
            key, features = self._inserted(features, coordinates, tensor_stride)
        assert key is not None
        self._hold(features, key, requires_grad)

    def _inserted(
        self, features: torch.Tensor, coordinates: torch.Tensor, tensor_stride: Any
    ) -> tuple[Key, torch.Tensor]:
        if coordinates.dtype is not torch.int32:
            warnings.warn(
                f"coordinates of {coordinates.dtype} are floored to int32: convert with .int()",
                stacklevel=3,
            )
            coordinates = floored(coordinates)
        key, (first, places) = self._manager.insert_and_map(coordinates, tensor_stride)
        self.unique_index, self.inverse_mapping = first, places
        if len(first) == len(features):
            return key, features
        if self.quantization_mode is Mode.RANDOM_SUBSAMPLE:
            return key, features[first]
        return key, reduced(features, grouped(places, len(first)), self.quantization_mode)

    @property
    def coordinate_map_key(self) -> Key:
        """The key of the sites in the coordinate manager."""
        return self._key

    def _joined(self, other: Self, function: Callable[[Any, Any], torch.Tensor]) -> Self:
        key = Key(self.D + 1)
        (_, mine), (_, theirs) = self._manager.union_map([self._key, other._key], key)
        out = self._F.new_zeros((self._manager.size(key), self._F.shape[1]))
        out = out.index_copy(0, mine, self._F)
        both = function(out[theirs], other._F)
        return self._at_key(out.to(both.dtype).index_copy(0, theirs, both), key)

    def _at_key(self, features: torch.Tensor, key: Key) -> Self:
        made = type(self).__new__(type(self))
        made._manager, made.quantization_mode = self._manager, Mode.RANDOM_SUBSAMPLE
        made._hold(features, key)
        return made

    def sparse(
        self,
        min_coords: torch.Tensor | None = None,
        max_coords: torch.Tensor | None = None,
        contract_coords: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a PyTorch sparse tensor, its lowest coordinate and the tensor stride.

        The tensor is ``[B, *spatial, C]``. Its cells extend from ``min_coords`` to ``max_coords``,
        both ``int32[D]``; None takes the lowest and the largest coordinates. If
        ``contract_coords``, coordinates are divided by the tensor stride.
        """
        stride, rows = torch.IntTensor(self.tensor_stride), self.C[:, 1:]
        low = rows.amin(0, keepdim=True) if min_coords is None else min_coords.view(1, -1)
        _check_aligned("min_coords", low, stride)
        rows, size = rows - low, None
        step = stride if contract_coords else 1
        if max_coords is not None:
            _check_aligned("max_coords", max_coords, stride)
            extent = ((max_coords.view(1, -1) - low) // step)[0] + 1
            size = [int(self.C[:, 0].max()) + 1, *extent.tolist(), self.F.shape[1]]
        indices = torch.cat([self.C[:, :1], rows // step], 1).long().T
        sizes = () if size is None else (torch.Size(size),)
        made = torch.sparse_coo_tensor(indices, self.F, *sizes, check_invariants=True)
        return made, low // step, stride

    def dense(
        self,
        shape: torch.Size | None = None,
        min_coordinate: torch.Tensor | None = None,
        contract_stride: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a dense tensor ``[B, C, *spatial]``, a lowest coordinate and the tensor stride.

        The lowest coordinate is ``min_coordinate``; if that is None, it is the lowest coordinate of
        the sites.

        Args:
          shape: shape ``[B, C, *spatial]`` of the result, in which the number of channels replaces
            C. None takes the smallest shape that has all coordinates.
          min_coordinate: ``int32[D]``, coordinates of the first cell; None takes 0.
          contract_stride: whether to divide coordinates by the tensor stride.
        """
        stride = torch.IntTensor(self.tensor_stride)
        if shape is not None and len(shape) != self.D + 2:
            raise ArgumentError(f"shape {tuple(shape)}: expected [B, C, *{self.D} sizes]")
        if not len(self):
            if shape is None:
                raise ArgumentError("a tensor without rows: give shape")
            empty = self._F.new_zeros((shape[0], self._F.shape[1], *shape[2:]))
            return empty, torch.zeros(self.D, dtype=torch.int32), stride
        rows = self.C[:, 1:]
        low = rows.amin(0, keepdim=True)
        if min_coordinate is not None:
            low = torch.as_tensor(min_coordinate).expand(self.D).view(1, -1).int()
            rows = rows - low
        elif bool((low < 0).any()):
            raise ArgumentError(f"coordinates from {low[0].tolist()} on: give min_coordinate")
        _check_aligned("min_coordinate", low, stride)
        rows = rows // stride if contract_stride else rows
        if shape is None:
            sizes = [int(self.C[:, 0].max()) + 1, *(rows.amax(0) + 1).tolist()]
        else:
            sizes = [shape[0], *shape[2:]]
        index = torch.cat([self.C[:, :1], rows], 1).long()
        outside = ((index < 0) | (index >= torch.tensor(sizes))).any(1)
        if bool(outside.any()):
            row = index[outside][0].tolist()
            raise ArgumentError(f"cell {row} outside a dense tensor of {sizes} cells")
        out = self._F.new_zeros((*sizes, self._F.shape[1])).index_put(tuple(index.T), self._F)
        return out.movedim(-1, 1).contiguous(), low, stride

    def interpolate(self, X: Any) -> Any:
        """Interpolate the features linearly at the points of a field ``X``, and return a field."""
        if not isinstance(X, self.FIELD):
            raise ArgumentError(f"interpolate({type(X).__name__}): expected a TensorField")
        if self._key in X.splatted:
            sites, points, weights = X.splatted[self._key]
            out = spmm(points, sites, weights, torch.Size([len(X), len(self)]), self._F)
        else:
            out = self.features_at_coordinates(X.C.to(self.dtype))
        return X.replaced(out)

    def slice(self, X: Any) -> Any:
        """Return a field in which each point has this tensor's features at the point's site.

        Args:
          X: a field with the points; or a sparse tensor, whose original rows are the points.

        Raises:
          ArgumentError: a point is in none of this tensor's sites, or the quantization mode of
            ``X`` is neither RANDOM_SUBSAMPLE nor UNWEIGHTED_AVERAGE.
        """
        if X.quantization_mode not in SLICEABLE:
            raise ArgumentError(
                f"slice() with {X.quantization_mode}: expected RANDOM_SUBSAMPLE or "
                "UNWEIGHTED_AVERAGE, whose sites stand for their rows"
            )
        if isinstance(X, self.FIELD):
            return X.replaced(self._F[X.inverse_mapping(self._key).long()])
        if not isinstance(X, SparseTensor):
            raise ArgumentError(f"slice({type(X).__name__}): expected a field or a sparse tensor")
        self._is_same_key(X)
        rows = X.inverse_mapping
        made: Any = {"coordinate_manager": self._manager, "coordinates": self.C[rows]}
        return self.FIELD(self._F[rows], quantization_mode=self.quantization_mode, **made)

    def cat_slice(self, X: Any) -> Any:
        """Return the field of :meth:`slice`, with the channels of ``X`` appended at each point."""
        own = X.F if isinstance(X, self.FIELD) else X.F[X.inverse_mapping]
        sliced = SparseTensor.slice(self, X)
        return sliced.replaced(torch.cat([sliced.F, own], 1))

    def features_at_coordinates(self, query_coordinates: torch.Tensor) -> torch.Tensor:
        """Return features ``[P, C]``, interpolated linearly at float points ``[P, 1 + D]``."""
        return interpolated(self._F, query_coordinates, self._key, self._manager)[0]


def _check_aligned(name: str, value: torch.Tensor, stride: torch.Tensor) -> None:
    if bool((value % stride != 0).any()):
        raise ArgumentError(f"{name} {value.tolist()}: expected multiples of {stride.tolist()}")


def target_key(input: SparseTensor, coordinates: Any, stride: Any = None) -> Key:
    """Return the key of a layer's output sites, which is not set yet if the layer makes the sites.

    Args:
      input: tensor that the layer takes.
      coordinates: output sites: a key, a sparse tensor of the same manager, ``int32[N, 1 + D]``, or
        None if the layer makes them.
      stride: tensor stride of ``int32`` coordinates; None takes that of ``input``.
    """
    if coordinates is None:
        return Key(input.D + 1)
    if isinstance(coordinates, Key):
        return coordinates
    if isinstance(coordinates, SparseTensor):
        if coordinates.coordinate_manager is not input.coordinate_manager:
            raise ArgumentError("coordinates of another coordinate manager")
        return coordinates.coordinate_map_key
    if not isinstance(coordinates, torch.Tensor):
        raise ArgumentError(f"coordinates of {type(coordinates).__name__}")
    steps = convert_to_int_list(input.tensor_stride if stride is None else stride, input.D)
    return input.coordinate_manager.insert_and_map(coordinates, steps)[0]


def check_sparse(input: Any, dimension: int | None = None) -> None:
    """Raise :class:`ArgumentError` unless ``input`` is a sparse tensor of ``dimension`` axes."""
    if not isinstance(input, SparseTensor):
        raise ArgumentError(f"{type(input).__name__}: this layer takes a SparseTensor")
    if dimension is not None and dimension != input.D:
        raise ArgumentError(f"a {dimension}-D layer on coordinates of {input.D} axes")
