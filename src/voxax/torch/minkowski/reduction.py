"""Reduce groups of rows to one row each: sum, average, maximum or first row."""

from __future__ import annotations

import torch

from voxax.torch.core import pooling
from voxax.torch.core.errors import ArgumentError, check_features
from voxax.torch.core.kernel_map import KernelMap, PairMap
from voxax.torch.minkowski.constants import SparseTensorQuantizationMode as Mode


def grouped(places: torch.Tensor, groups: int) -> PairMap:
    """Return a kernel map with one output row per group, which reads all input rows of the group.

    The map has one tap. Poolings along this map reduce each group to one row.

    Args:
      places: ``int[N]``, the group of each row.
      groups: number of groups; some may be empty.
    """
    rows = torch.arange(len(places))
    pairs = torch.stack([rows.int(), places.int()]).view(2, 1, -1)
    return PairMap(pairs, torch.tensor([len(places)]), len(places), groups)


def reduced(features: torch.Tensor, kernel_map: KernelMap, mode: Mode) -> torch.Tensor:
    """Return one row of features for each of M groups of rows, ``[M, C]``.

    ``features`` is ``[N, C]``, and ``kernel_map`` is the result of :func:`grouped`. ``mode``
    chooses the first row, the sum, the mean or the maximum of a group. An empty group gives 0.

    Raises:
      ArgumentError: the mode is no reduction, or the features to sum or compare are integers.
    """
    if mode is Mode.RANDOM_SUBSAMPLE:
        return _first(features, kernel_map)
    check_features(features, kernel_map.in_rows)
    if mode is Mode.UNWEIGHTED_SUM:
        return pooling.total(features, kernel_map)
    if mode is Mode.UNWEIGHTED_AVERAGE:
        return pooling.mean(features, kernel_map)
    if mode is Mode.MAX_POOL:
        return pooling.extreme(features, kernel_map)
    raise ArgumentError(f"{mode} does not say what remains of several rows of one site")


def _first(features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    first = torch.full((kernel_map.out_rows,), len(features))
    for outs, ins, _ in kernel_map.by_tap():
        first.scatter_reduce_(0, outs, ins, "amin")
    padded = torch.cat([features, features.new_zeros((1, features.shape[1]))])
    return padded[first]
