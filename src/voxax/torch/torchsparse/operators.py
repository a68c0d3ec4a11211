"""Concatenate or add several sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from voxax.torch.core.kernel_map import unique_rows
from voxax.torch.torchsparse import tensor as checks
from voxax.torch.torchsparse.tensor import SparseTensor, with_features


def cat(inputs: Sequence[SparseTensor]) -> SparseTensor:
    """Concatenate the channels of tensors; raise ArgumentError if their voxels differ."""
    checks.check_same_voxels("cat", *inputs)
    feats = torch.cat([tensor._features.rows() for tensor in inputs], dim=1)
    return with_features(inputs[0], feats)


def generative_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Add two tensors on the union of their voxels, which are then in lexicographic order.

    Stride, spatial range and cache come from the tensor with more voxels, or from ``a`` if both
    have the same number.
    """
    checks.check_tensors("generative_add", a, b)
    checks.check_channels("generative_add", a, b)
    first, second = (a, b) if len(a.feats) >= len(b.feats) else (b, a)
    rows, places = unique_rows(torch.cat([first.coords, second.coords]).numpy())
    feats = torch.cat([first.feats, second.feats])
    total = feats.new_zeros((len(rows), feats.shape[1]))
    total = total.index_add(0, torch.from_numpy(places).long(), feats)
    output = SparseTensor(total, torch.from_numpy(rows), first.stride, first.spatial_range)
    output._caches = first._caches
    return output
