"""Apply activations, crops and global poolings to a sparse tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from voxax.torch.core.errors import ArgumentError
from voxax.torch.torchsparse.tensor import SparseTensor, check_tensors, with_features
from voxax.torch.torchsparse.utils.grids import make_ntuple


def fapply(input: SparseTensor, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """Return a tensor with the features ``fn(features, *args, **kwargs)`` at the same voxels."""
    check_tensors(getattr(fn, "__name__", "fapply"), input)
    return with_features(input, fn(input.feats, *args, **kwargs))


def relu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    """Return a sparse tensor with ReLU applied to the features.

    If ``inplace``, the features of ``input`` change too.
    """
    return fapply(input, functional.relu, inplace=inplace)


def silu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    """Return a sparse tensor with SiLU applied to the features.

    If ``inplace``, the features of ``input`` change too.
    """
    return fapply(input, functional.silu, inplace=inplace)


def leaky_relu(
    input: SparseTensor, negative_slope: float = 0.1, inplace: bool = True
) -> SparseTensor:
    """Return a sparse tensor with leaky ReLU applied to the features.

    If ``inplace``, the features of ``input`` change too.
    """
    return fapply(input, functional.leaky_relu, negative_slope=negative_slope, inplace=inplace)


def spcrop(
    input: SparseTensor,
    coords_min: Sequence[int] | None = None,
    coords_max: Sequence[int] | None = None,
) -> SparseTensor:
    """Return a tensor of the voxels with ``coords_min <= (x, y, z) < coords_max``.

    None as ``coords_min`` or ``coords_max`` sets no limit. TorchSparse 2.1 itself compares the
    first three columns of the coordinates with the limits: batch index, x and y. In TorchSparse
    1.4, the first three columns were x, y and z.
    """
    check_tensors("spcrop", input)
    at = input.coords[:, input._axes]
    inside = torch.ones(len(at), dtype=torch.bool)
    if coords_min is not None:
        inside &= (at >= torch.tensor(make_ntuple(coords_min, ndim=3))).all(1)
    if coords_max is not None:
        inside &= (at < torch.tensor(make_ntuple(coords_max, ndim=3))).all(1)
    return input._kind(input.feats[inside], input.coords[inside], input.stride)


def rows_of_scenes(input: SparseTensor) -> list[torch.Tensor]:
    """Return the rows of each scene: one ``int64[n]`` per batch index from 0 to the largest."""
    check_tensors("a pool or norm by scene", input)
    batch = input.coords[:, input._batch]
    scenes = int(batch.max()) + 1 if len(batch) else 0
    return [torch.nonzero(batch == scene).flatten() for scene in range(scenes)]


def global_avg_pool(inputs: SparseTensor) -> torch.Tensor:
    """Return the mean of each scene's features, ``[B, C]``; scenes without voxels are an error."""
    return torch.stack([feats.mean(0) for feats in _scenes(inputs)])


def global_max_pool(inputs: SparseTensor) -> torch.Tensor:
    """Return the maximum of each scene's features, ``[B, C]``; an empty scene is an error."""
    return torch.stack([feats.max(0)[0] for feats in _scenes(inputs)])


def _scenes(inputs: SparseTensor) -> list[torch.Tensor]:
    rows = rows_of_scenes(inputs)
    empty = [scene for scene, found in enumerate(rows) if not len(found)]
    if empty or not rows:
        raise ArgumentError(
            f"scenes {empty} of {len(rows)} have no voxels: a global pool needs one in each. Drop "
            "these scenes, and renumber the others"
        )
    return [inputs.feats[found] for found in rows]
