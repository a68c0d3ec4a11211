"""Define MinkowskiEngine's TensorField: features on points with float coordinates."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.arguments import convert_to_int_list
from voxax.torch.minkowski.constants import SparseTensorQuantizationMode as Mode
from voxax.torch.minkowski.manager import CoordinateManager, Key
from voxax.torch.minkowski.reduction import grouped, reduced
from voxax.torch.minkowski.sparse_matrix import spmm
from voxax.torch.minkowski.sparse_tensor import SLICEABLE, SparseTensor
from voxax.torch.minkowski.tensor import Tensor

_MODES = (*SLICEABLE, Mode.UNWEIGHTED_SUM, Mode.MAX_POOL)


class TensorField(Tensor):
    """Tensor field: one row of features for each point; points have float coordinates.

    Args:
      features, requires_grad, device, allocator_type, minkowski_algorithm: as in a sparse tensor.
      coordinates: ``float[N, 1 + D]``, batch index first; converted to float32.
      tensor_stride: tensor stride to store in the key of newly inserted points.
      coordinate_field_map_key, coordinate_manager: key of known points and its manager, in place of
        coordinates; or only a manager, in which to insert the points.
      quantization_mode: how :meth:`sparse` reduces several points in one site to one row.
    """

    def __init__(
        self,
        features: torch.Tensor,
        coordinates: torch.Tensor | None = None,
        tensor_stride: Any = 1,
        coordinate_field_map_key: Key | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.UNWEIGHTED_AVERAGE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: Any = None,
    ) -> None:
        key = coordinate_field_map_key
        self._begin(features, coordinates, key, coordinate_manager, quantization_mode, device)
        if quantization_mode not in _MODES:
            raise ArgumentError(f"a field with {quantization_mode}: expected one of {_MODES}")
        if coordinates is not None:
            key = self._manager.insert_field(coordinates, tensor_stride)
        assert key is not None
        self._hold(features, key, requires_grad)
        self._C = coordinates
        self._inverse_mapping: dict[Key, torch.Tensor] = {}
        self.splatted: dict[Key, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    @property
    def coordinate_field_map_key(self) -> Key:
        """The key of the points in the coordinate manager."""
        return self._key

    def _get_coordinates(self) -> torch.Tensor:
        return self._manager.get_coordinate_field(self._key)

    def sparse(
        self,
        tensor_stride: Any = 1,
        coordinate_map_key: Key | None = None,
        quantization_mode: Mode | None = None,
    ) -> SparseTensor:
        """Convert to a sparse tensor on the sites that contain the points.

        Args:
          tensor_stride: distance of neighboring sites, one integer or one per axis.
          coordinate_map_key: key of known sites, in place of new sites. A site without points gets
            zeros, and every point must be in a site.
          quantization_mode: how several points in one site become one row; None takes the field's.
        """
        if coordinate_map_key is None:
            stride = convert_to_int_list(tensor_stride, self.D)
            key, (_, places) = self._manager.field_to_sparse_insert_and_map(self._key, stride)
        else:
            key, places = coordinate_map_key, self._places(coordinate_map_key)
        self._inverse_mapping[key] = places
        groups, mode = grouped(places, self._manager.size(key)), quantization_mode
        mode = self.quantization_mode if mode is None else mode
        return self._on_sites(reduced(self._F, groups, mode), key)

    def _places(self, key: Key) -> torch.Tensor:
        places, points = self._manager.field_to_sparse_map(self._key, key)
        if len(points) < len(self):
            missing = f"{len(self) - len(points)} of {len(self)}"
            raise ArgumentError(f"{missing} points lie in no site of {key}")
        return places

    def splat(self) -> SparseTensor:
        """Return a sparse tensor in which each point adds features to the ``2**D`` sites around it.

        A point adds its features to a site, times the weight that the site has in a linear
        interpolation at the point. The tensor stride is 1.
        """
        low = torch.floor(self.C).int()
        corners = torch.tensor(list(itertools.product((0, 1), repeat=self.D)), dtype=torch.int32)
        corners = torch.cat([torch.zeros((len(corners), 1), dtype=torch.int32), corners], 1)
        rows = (low[:, None] + corners).view(-1, self.D + 1)
        key, _ = self._manager.insert_and_map(rows)
        sites, points, weights = self._manager.interpolation_map_weight(key, self.C)
        weights = weights.to(self._F.dtype)
        self.splatted[key] = sites, points, weights
        size = torch.Size([self._manager.size(key), len(self)])
        return self._on_sites(spmm(sites, points, weights, size, self._F), key)

    def _on_sites(self, features: torch.Tensor, key: Key) -> SparseTensor:
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    def inverse_mapping(self, sparse_tensor_map_key: Key) -> torch.Tensor:
        """Return the row of each point's site, ``int[N]``, among the sites of a key.

        Every point must be in a site of the key ``sparse_tensor_map_key``.
        """
        key = sparse_tensor_map_key
        if key not in self._inverse_mapping:
            known = self._manager.exists_field_to_sparse(self._key, key)
            maps = self._manager.get_field_to_sparse_map
            self._inverse_mapping[key] = maps(self._key, key)[1] if known else self._places(key)
        return self._inverse_mapping[key]


SparseTensor.FIELD = TensorField
