"""Compute maxima, sums and means of the input rows that each output row reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voxax._native import host_products
from voxax.torch.core.kernel_map import KernelMap
from voxax.torch.core.products import bits, convolve, natively


def extreme_rows(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the input row with the largest value for each output row and channel, ``int64[M, C]``.

    ``features`` is ``[N, C]``. Only the input rows that an output row reads are compared. Among
    equal values, the row of the first tap is returned. -1 means that an output row reads no input
    row.
    """
    if features.dtype is torch.float16:
        return extreme_rows(features.float(), kernel_map)
    if natively(kernel_map):
        table, threads = kernel_map.neighbors.numpy(), torch.get_num_threads()
        found = host_products.extreme_rows(bits(features), table, threads=threads)
        return torch.from_numpy(found).long()
    shape, none = (kernel_map.out_rows, features.shape[1]), features.shape[0]
    best = features.new_full(shape, -torch.inf)
    for rows, ins, _ in kernel_map.by_tap():
        index = rows[:, None].expand(-1, shape[1])
        best.scatter_reduce_(0, index, features[ins], "amax")
    found = features.new_full(shape, none, dtype=torch.int64)
    for rows, ins, _ in kernel_map.by_tap():
        value, winner = features[ins], best[rows]
        equal = (value == winner) | (value.isnan() & winner.isnan())
        first = torch.full_like(found, none)
        index = rows[:, None].expand(-1, shape[1])
        first.scatter_reduce_(0, index, torch.where(equal, ins[:, None], none), "amin")
        found = torch.where(found == none, first, found)
    return torch.where(found == none, -1, found)


class _ExtremeRows(torch.autograd.Function):
    """Autograd function of :func:`extreme_rows`, which can also run inside ``torch.func``."""

    @staticmethod
    def forward(features: Tensor, kernel_map: KernelMap) -> Tensor:
        return extreme_rows(features, kernel_map)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None]:
        return None, None


def extreme(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the largest value that each of M output rows reads in each channel, ``[M, C]``.

    An output row that reads no input row gets 0. The gradient goes to the input row that
    :func:`extreme_rows` returns.
    """
    found = _ExtremeRows.apply(features, kernel_map)
    best = torch.take_along_dim(features, found.clamp(min=0), dim=0)
    return torch.where(found >= 0, best, 0)


def total(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the sum of the feature rows that each of M output rows reads, ``[M, C]``.

    An output row that reads no input row gets 0.
    """
    ones = features.new_ones((kernel_map.taps, features.shape[1]))
    return convolve(features, ones, kernel_map)


def mean(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the mean of the feature rows that each of M output rows reads, ``[M, C]``.

    An output row that reads no input row gets 0. Half precision is summed in float32.
    """
    wide = torch.promote_types(features.dtype, torch.float32)
    number = kernel_map.counts.clamp(min=1)[:, None]
    return (total(features.to(wide), kernel_map) / number).to(features.dtype)
