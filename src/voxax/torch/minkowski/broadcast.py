"""Layers that combine the features of each site (voxel) with the features of the site's scene."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.constants import BroadcastMode
from voxax.torch.minkowski.manager import CoordinateManager, Key
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.sparse_tensor import SparseTensor, check_sparse


def spread(scenes: Tensor, key: Key, manager: CoordinateManager) -> Tensor:
    """Return for each site the row of ``scenes`` of the site's scene, ``[N, C]``.

    ``scenes [B, C]`` has one row per scene, in the order of the batch index. ``key`` is the key of
    the N sites in ``manager``.
    """
    places, known = manager.scene_rows(key), manager.number_of_unique_batch_indices()
    if len(scenes) != known:
        raise ArgumentError(f"{len(scenes)} rows for {known} scenes: expected a pooled tensor")
    return scenes[places]


class MinkowskiBroadcastFunction:
    """Sum or product of site and scene features, with the interface of an autograd function."""

    @staticmethod
    def apply(
        rows: Tensor, scenes: Tensor, mode: Any, key: Key, scenes_key: Key, manager: Any
    ) -> Tensor:
        """Return each row of ``rows [N, C]``, plus or times the features of its scene, ``[N, C]``.

        ``scenes [B, C]`` has one row per scene. ``mode``, a member of ``BroadcastMode``, chooses
        sum or product. ``key`` is the key of the N sites in ``manager``. ``scenes_key`` is ignored.
        """
        found = spread(scenes, key, manager)
        return rows + found if mode is BroadcastMode.ELEMENTWISE_ADDITON else rows * found


class MinkowskiBroadcast(MinkowskiModuleBase):
    """Layer that replaces the features of each site by the pooled features of the site's scene."""

    def forward(self, input: SparseTensor, input_glob: SparseTensor) -> SparseTensor:
        """Return a tensor on the sites of ``input``, with the features that the class describes.

        ``input_glob`` has the pooled features: one row per scene, in the order of the batch index.
        """
        check_sparse(input)
        check_sparse(input_glob)
        rows = spread(input_glob.F, input.coordinate_map_key, input.coordinate_manager)
        return input.replaced(self._joined(input.F, rows))

    def _joined(self, features: Tensor, rows: Tensor) -> Tensor:
        return rows

    def __repr__(self) -> str:
        return type(self).__name__


class MinkowskiBroadcastAddition(MinkowskiBroadcast):
    """Layer that adds to the features of each site the pooled features of the site's scene."""

    operation_type = BroadcastMode.ELEMENTWISE_ADDITON

    def _joined(self, features: Tensor, rows: Tensor) -> Tensor:
        return features + rows


class MinkowskiBroadcastMultiplication(MinkowskiBroadcast):
    """Layer that multiplies the features of each site by the pooled features of its scene."""

    operation_type = BroadcastMode.ELEMENTWISE_MULTIPLICATION

    def _joined(self, features: Tensor, rows: Tensor) -> Tensor:
        return features * rows


class MinkowskiBroadcastConcatenation(MinkowskiBroadcast):
    """Layer that appends to the channels of each site the pooled channels of the site's scene."""

    def _joined(self, features: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([features, rows], 1)
