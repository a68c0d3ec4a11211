"""Largest and mean values under the windows of a kernel map."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from typing import Any

import torch

from voxax._native import host_products
from voxax.torch.spconv.kernel_map import KernelMap
from voxax.torch.spconv.products import bits, natively


def largest(features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    """``[M, C]``: the largest value under each window, and 0 at least, as spconv has it."""
    if features.dtype is torch.float16:
        return largest(features.float(), kernel_map).half()
    if natively(kernel_map):
        table, threads = kernel_map.neighbors.numpy(), torch.get_num_threads()
        found = torch.from_numpy(host_products.extreme_rows(bits(features), table, threads=threads))
        best = torch.take_along_dim(features, found.clamp(min=0).long(), dim=0)
        return torch.where(found >= 0, best, 0).clamp_(min=0)
    best = features.new_zeros((kernel_map.out_rows, features.shape[1]))
    for rows, ins, _ in kernel_map.by_tap():
        index = rows[:, None].expand(-1, features.shape[1])
        best.scatter_reduce_(0, index, features[ins], "amax")
    return best


def largest_backward(
    features: torch.Tensor, out: torch.Tensor, grad: torch.Tensor, kernel_map: KernelMap
) -> torch.Tensor:
    """``[N, C]``: each window's gradient, at every value in it that equals its result."""
    total = torch.zeros_like(features, dtype=torch.promote_types(features.dtype, torch.float32))
    for rows, ins, _ in kernel_map.by_tap():
        total.index_add_(0, ins, torch.where(features[ins] == out[rows], grad[rows], 0).to(total))
    return total.to(features.dtype)


def average(features: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    """``[M, C]``: the mean of the voxels under each window, 0 without any."""
    wide = torch.promote_types(features.dtype, torch.float32)
    total = features.new_zeros((kernel_map.out_rows, features.shape[1]), dtype=wide)
    for rows, ins, _ in kernel_map.by_tap():
        total.index_add_(0, rows, features[ins].to(wide))
    number = kernel_map.counts.clamp(min=1)
    return (total / number[:, None]).to(features.dtype)


def average_backward(
    grad: torch.Tensor, kernel_map: KernelMap, number: torch.Tensor
) -> torch.Tensor:
    """``[N, C]``: spconv's gradient, which sums ``grad * number`` instead of ``grad / number``."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    scaled = grad.to(wide) * number[:, None].to(wide)
    total = scaled.new_zeros((kernel_map.in_rows, grad.shape[1]))
    for rows, ins, _ in kernel_map.by_tap():
        total.index_add_(0, ins, scaled[rows])
    return total.to(grad.dtype)


class MaxPool(torch.autograd.Function):
    """:func:`largest` with spconv's gradient, which all equal values have."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        out = largest(x, kernel_map)
        ctx.save_for_backward(x, out)
        ctx.kernel_map = kernel_map
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, out = ctx.saved_tensors
        return largest_backward(x, out, grad, ctx.kernel_map), None


class AveragePool(torch.autograd.Function):
    """:func:`average` with spconv's gradient: multiplied by the number of voxels, not divided."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        ctx.kernel_map = kernel_map
        return average(x, kernel_map)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return average_backward(grad, ctx.kernel_map, ctx.kernel_map.counts), None
