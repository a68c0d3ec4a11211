"""Modules of several branches."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from voxax.torch.spconv import functional
from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.errors import SpconvError
from voxax.torch.spconv.modules import SparseModule


class _Table(SparseModule):
    def input_spatial_size(self, out_size: Sequence[int]) -> Sequence[int]:
        """Return the argument."""
        return out_size


class JoinTable(_Table):
    """Features side by side, of tensors at the same voxels with as many channels."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return the first tensor with the channels of all.

        Raises:
          SpconvError: tensors at other voxels.
        """
        _check_same(input)
        return input[0].replace_feature(torch.cat([x.features for x in input], 1))


class AddTable(_Table):
    """Sum of tensors at the same voxels."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return the first tensor with the sum of all.

        Raises:
          SpconvError: tensors at other voxels.
        """
        _check_same(input)
        total = sum((x.features for x in input[1:]), input[0].features)
        return input[0].replace_feature(total)


class AddTableMisaligned(_Table):
    """Sum of tensors at different voxels: see :func:`functional.sparse_add_hash_based`."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return a tensor at the voxels of all."""
        return functional.sparse_add_hash_based(*input)


class ConcatTable(SparseModule):
    """A list of what its modules make of one input."""

    def forward(self, input: Any) -> list[Any]:
        """Return one result per module."""
        return [module(input) for module in self._modules.values()]  # type: ignore[misc]

    def add(self, module: nn.Module) -> ConcatTable:
        """Append a module; returns this table."""
        self.add_module(str(len(self._modules)), module)
        return self

    def input_spatial_size(self, out_size: Sequence[int]) -> Sequence[int]:
        """Return that of the first module."""
        return self._modules["0"].input_spatial_size(out_size)  # type: ignore[union-attr,operator]


def _check_same(tensors: Sequence[SparseConvTensor]) -> None:
    first = _signature(tensors[0])
    for other in tensors[1:]:
        if _signature(other) != first:
            raise SpconvError(
                f"tensors of (spatial_shape, batch_size, channels, voxels) {first} and "
                f"{_signature(other)}: a table takes tensors at the same voxels with as many "
                "channels; AddTableMisaligned adds others"
            )


def _signature(x: SparseConvTensor) -> tuple[Any, ...]:
    return list(x.spatial_shape), x.batch_size, x.features.shape[1], x.indices.shape[0]
