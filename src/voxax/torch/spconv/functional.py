"""Differentiable convolutions and poolings along spconv's kernel maps, and sums of tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.kernel_map import KernelMap, unique_rows
from voxax.torch.core.pooling import mean
from voxax.torch.spconv import ops
from voxax.torch.spconv.algo import Activation
from voxax.torch.spconv.core import SparseConvTensor

_REST = ("algo", "timer", "bias", "act_alpha", "act_beta", "act_type")


def indice_conv(features: Tensor, filters: Tensor, *pairs: Any, **options: Any) -> Tensor:
    """Return the features of a convolution along pairs of rows, ``[num_activate_out, C_out]``.

    Args:
      features: features of the input, ``[N, C_in]``.
      filters: ``[C_out, *kernel_size, C_in]``.
      pairs: ``indice_pairs``, ``indice_pair_num`` and ``num_activate_out``, then ``algo`` and the
        arguments after it, all as in :func:`voxax.torch.spconv.ops.indice_conv`.
      options: any of these arguments by name.
    """
    rest = dict(zip(_REST[: len(pairs[3:])], pairs[3:], strict=True))
    return ops.indice_conv(features, filters, *pairs[:3], **rest, **options)


def indice_subm_conv(features: Tensor, filters: Tensor, *pairs: Any, **options: Any) -> Tensor:
    """Return the features of a submanifold convolution; arguments as in :func:`indice_conv`."""
    return indice_conv(features, filters, *pairs, subm=True, **options)


def indice_inverse_conv(features: Tensor, filters: Tensor, *pairs: Any, **options: Any) -> Tensor:
    """Return the features of an inverse convolution; arguments as in :func:`indice_conv`."""
    return indice_conv(features, filters, *pairs, inverse=True, **options)


def implicit_gemm(
    features: Tensor,
    filters: Tensor,
    pair_fwd: Tensor,
    pair_bwd: Tensor,
    pair_mask_fwd_splits: Any,
    pair_mask_bwd_splits: Any,
    mask_argsort_fwd_splits: Any,
    mask_argsort_bwd_splits: Any,
    num_activate_out: int,
    masks: Any,
    is_train: bool,
    is_subm: bool,
    timer: Any = None,
    fp32_accum: bool | None = None,
    bias: Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
) -> Tensor:
    """Return the convolution ``[M, C_out]`` along a table of input rows.

    ``pair_fwd int32[K, M]`` has the input row of each tap and output row, or -1. Arguments are as
    in :func:`voxax.torch.spconv.ops.implicit_gemm`; ``pair_bwd``, ``pair_mask_bwd_splits`` and
    ``mask_argsort_bwd_splits`` are ignored.
    """
    del pair_bwd, pair_mask_bwd_splits, mask_argsort_bwd_splits
    masked = pair_mask_fwd_splits, mask_argsort_fwd_splits, num_activate_out, masks
    rest = is_train, is_subm, timer, fp32_accum, bias, act_alpha, act_beta, act_type
    return ops.implicit_gemm(features, filters, pair_fwd, *masked, *rest)[0]


class MaxPool(torch.autograd.Function):
    """Autograd function for max pooling; each value equal to the maximum gets the full gradient.

    ``apply`` takes features ``[N, C]`` and a :class:`~voxax.torch.core.kernel_map.KernelMap`. It
    returns the maximum over the input rows that each of M output rows reads, but at least 0,
    ``[M, C]``.
    """

    @staticmethod
    def forward(x: Tensor, kernel_map: KernelMap) -> Tensor:
        return ops.largest(x, kernel_map)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.kernel_map = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, out = ctx.saved_tensors
        return ops.largest_backward(x, out, grad, ctx.kernel_map), None


class AveragePool(torch.autograd.Function):
    """Autograd function of mean pooling with the gradient of :func:`ops.average_backward`.

    ``apply`` takes features ``[N, C]`` and a :class:`~voxax.torch.core.kernel_map.KernelMap`. It
    returns the mean over the input rows that each of M output rows reads, ``[M, C]``.
    """

    @staticmethod
    def forward(x: Tensor, kernel_map: KernelMap) -> Tensor:
        return mean(x, kernel_map)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del output
        ctx.kernel_map = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return ops.average_backward(grad, ctx.kernel_map, ctx.kernel_map.counts), None


def indice_maxpool(
    features: Tensor, indice_pairs: Tensor, indice_pair_num: Tensor, num_activate_out: int
) -> Tensor:
    """Return each output row's maximum over its input rows, at least 0: ``[num_activate_out, C]``.

    ``features`` is ``[N, C]``. ``indice_pairs`` and ``indice_pair_num``, the pairs of rows and
    their numbers, are results of :func:`voxax.torch.spconv.ops.get_indice_pairs`.
    """
    sizes = indice_pair_num, features.shape[0], num_activate_out
    return MaxPool.apply(features, KernelMap.of_pairs(indice_pairs, *sizes))


def indice_maxpool_implicit_gemm(
    features: Tensor, indice_pairs_fwd: Tensor, indice_pairs_bwd: Tensor, num_activate_out: int
) -> Tensor:
    """Return each output row's maximum over its input rows, at least 0: ``[M, C]``.

    ``indice_pairs_fwd int32[K, M]`` has the input row of each tap and output row, or -1. The
    arguments after it are ignored.
    """
    del indice_pairs_bwd, num_activate_out
    return MaxPool.apply(features, ops.table_map(indice_pairs_fwd, features.shape[0]))


def indice_avgpool_implicit_gemm(
    features: Tensor,
    indice_pairs_fwd: Tensor,
    indice_pairs_bwd: Tensor,
    num_activate_out: int,
    calc_count: bool,
) -> Tensor:
    """Return each output row's mean over its input rows, ``[M, C]``.

    ``indice_pairs_fwd int32[K, M]`` has the input row of each tap and output row, or -1. The
    arguments after it are ignored.
    """
    del indice_pairs_bwd, num_activate_out, calc_count
    return AveragePool.apply(features, ops.table_map(indice_pairs_fwd, features.shape[0]))


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """Return the sum of tensors, on the union of their voxels in lexicographic order.

    Its ``indice_dict`` is that of the first tensor whose ``indices`` equal those of the sum, in the
    same order. Without such a tensor it is empty.

    Raises:
      SpconvError: no tensors, or tensors that differ in spatial shape, batch size or channels.
    """
    if not tens:
        raise ArgumentError("sparse_add of no tensors: expected one or more")
    first = tens[0]
    for other in tens:
        said = [(x.spatial_shape, x.batch_size, x.features.shape[1]) for x in (first, other)]
        if said[0] != said[1]:
            raise ArgumentError(
                f"adding tensors of (spatial_shape, batch_size, channels) {said[0]} and {said[1]}"
            )
        other.sites().duplicates()
    rows = np.concatenate([x.indices.numpy() for x in tens])
    unique, places = unique_rows(rows)
    features = torch.cat([x.features for x in tens])
    total = features.new_zeros((len(unique), features.shape[1]))
    total = total.index_add(0, torch.from_numpy(places).long(), features)
    indices = torch.from_numpy(unique)
    made = SparseConvTensor(total, indices, first.spatial_shape, first.batch_size)
    made.benchmark, made.benchmark_record = first.benchmark, first.benchmark_record
    for x in tens:
        if len(x.indices) == len(unique) and torch.equal(x.indices, indices):
            made.indice_dict = x.indice_dict
            break
    return made


sparse_add_hash_based = sparse_add


# Code for spconv calls these functions by ``apply``.
SparseConvFunction = SimpleNamespace(apply=indice_conv)
SparseInverseConvFunction = SimpleNamespace(apply=indice_inverse_conv)
SubMConvFunction = SimpleNamespace(apply=indice_subm_conv)
SparseImplicitGemmFunction = SimpleNamespace(apply=implicit_gemm)
SparseMaxPoolFunction = SimpleNamespace(apply=indice_maxpool)
SparseMaxPoolImplicitGemmFunction = SimpleNamespace(apply=indice_maxpool_implicit_gemm)
SparseAvgPoolImplicitGemmFunction = SimpleNamespace(apply=indice_avgpool_implicit_gemm)
