"""Modules that join or add the sparse tensors of several network branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from voxax.torch.core.errors import ArgumentError
from voxax.torch.spconv import functional
from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.modules import SparseModule


class JoinTable(SparseModule):
    """Module that concatenates channels of tensors with the same voxels and channel counts."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return a tensor with the channels of all inputs.

        Raise :class:`SpconvError` if the inputs differ in spatial shape, batch size, number of
        channels or number of voxels. Their coordinates are not compared.
        """
        _check_same(input)
        return input[0].replace_feature(torch.cat([x.features for x in input], 1))


class AddTable(SparseModule):
    """Module that adds the features of tensors at the same voxels."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return a tensor with the sum of the features of all inputs.

        Raise :class:`SpconvError` if the inputs differ in spatial shape, batch size, number of
        channels or number of voxels. Their coordinates are not compared.
        """
        _check_same(input)
        total = sum((x.features for x in input[1:]), input[0].features)
        return input[0].replace_feature(total)


class AddTableMisaligned(SparseModule):
    """Module that adds tensors at different voxels, see :func:`functional.sparse_add`."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        return functional.sparse_add_hash_based(*input)


class ConcatTable(SparseModule):
    """Module that applies each of its modules to one input and returns the list of outputs."""

    def forward(self, input: Any) -> list[Any]:
        return [module(input) for module in self._modules.values()]  # type: ignore[misc]

    def add(self, module: nn.Module) -> ConcatTable:
        """Append a module, and return this ``ConcatTable``."""
        self.add_module(str(len(self._modules)), module)
        return self


def _check_same(tensors: Sequence[SparseConvTensor]) -> None:
    sizes = [(x.spatial_shape, x.batch_size, x.features.shape[1], len(x.indices)) for x in tensors]
    for other in sizes[1:]:
        if other != sizes[0]:
            raise ArgumentError(
                f"tensors of (spatial_shape, batch_size, channels, voxels) {sizes[0]} and {other}: "
                "a table takes tensors at the same voxels with as many channels; "
                "AddTableMisaligned adds others"
            )
