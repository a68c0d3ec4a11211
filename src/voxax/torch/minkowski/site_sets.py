"""Layers that remove sites (pruning), or add tensors on the union of their sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError
from voxax.torch.minkowski.manager import CoordinateManager, Key, given
from voxax.torch.minkowski.module import MinkowskiModuleBase
from voxax.torch.minkowski.sparse_tensor import SparseTensor, check_sparse
from voxax.torch.minkowski.tensor import COORDINATE_MANAGER_DIFFERENT_ERROR


class MinkowskiPruningFunction:
    """Removal of sites by a mask, with the interface of an autograd function."""

    @staticmethod
    def apply(
        rows: Tensor, mask: Tensor, key: Key, out_key: Key | None = None, manager: Any = None
    ) -> Tensor:
        """Return the features of the sites where ``mask bool[N]`` is True, ``[M, C]``.

        ``rows [N, C]`` are the features at the sites of ``key``. If ``out_key`` is not set, it is
        set to the M sites.
        """
        if mask.dtype not in (torch.bool, torch.uint8) or mask.shape != rows.shape[:1]:
            shape = tuple(mask.shape)
            raise ArgumentError(
                f"mask of {mask.dtype} and shape {shape}: expected bool[{len(rows)}]"
            )
        kept = mask.bool()
        if out_key is not None and not out_key.is_key_set():
            out_key.set_key(given(manager).prune(key, kept.numpy()).get_key())
        return rows[kept]


class MinkowskiPruning(MinkowskiModuleBase):
    """Layer that keeps the sites where a mask ``bool[N]`` is True, in the same order."""

    def forward(self, input: SparseTensor, mask: Tensor) -> SparseTensor:
        """Return a tensor with only the sites where ``mask bool[N]`` is True."""
        check_sparse(input)
        key, manager = Key(input.D + 1), input.coordinate_manager
        keys = input.coordinate_map_key, key
        out = MinkowskiPruningFunction.apply(input.F, mask.detach(), *keys, manager)
        return SparseTensor(out, coordinate_map_key=key, coordinate_manager=manager)


class MinkowskiUnionFunction:
    """Sum on the union of sites, with the interface of an autograd function."""

    @staticmethod
    def apply(
        keys: Sequence[Key], out_key: Key, manager: CoordinateManager, *features: Tensor
    ) -> Tensor:
        """Return the sum of several tensors on the union of their sites, ``[M, C]``.

        ``features`` has the rows of one tensor for each key in ``keys``. ``out_key`` is set to the
        M sites of the union.
        """
        maps = manager.union_map(keys, out_key)
        out = features[0].new_zeros((manager.size(out_key), features[0].shape[1]))
        for rows, (_, places) in zip(features, maps, strict=True):
            out = out.index_add(0, places, rows)
        return out


class MinkowskiUnion(MinkowskiModuleBase):
    """Layer that adds sparse tensors of one coordinate manager on the union of their sites."""

    def forward(self, *inputs: SparseTensor) -> SparseTensor:
        """Return the sum of two or more tensors, on the union of their sites."""
        for tensor in inputs:
            check_sparse(tensor)
            if tensor.coordinate_manager is not inputs[0].coordinate_manager:
                raise ArgumentError(COORDINATE_MANAGER_DIFFERENT_ERROR)
        if len(inputs) < 2:
            raise ArgumentError(f"a union of {len(inputs)} tensors: expected two or more")
        key, manager = Key(inputs[0].D + 1), inputs[0].coordinate_manager
        keys = [tensor.coordinate_map_key for tensor in inputs]
        out = MinkowskiUnionFunction.apply(keys, key, manager, *(tensor.F for tensor in inputs))
        return SparseTensor(out, coordinate_map_key=key, coordinate_manager=manager)
