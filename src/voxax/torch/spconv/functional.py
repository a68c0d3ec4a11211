"""spconv's differentiable functions on pairs, and sums of tensors at different voxels."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxax.torch.spconv import ops
from voxax.torch.spconv.algo import Activation, ConvAlgo
from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.errors import SpconvError
from voxax.torch.spconv.kernel_map import KernelMap, unique_rows
from voxax.torch.spconv.pooling import AveragePool, MaxPool


def indice_conv(
    features: torch.Tensor,
    filters: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
    bias: torch.Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
) -> torch.Tensor:
    """Return the features of a convolution of pairs, ``[num_activate_out, C_out]``."""
    pairs = indice_pairs, indice_pair_num, num_activate_out
    act = bias, act_alpha, act_beta, act_type
    return ops.indice_conv(features, filters, *pairs, False, False, algo, timer, *act)


def indice_subm_conv(
    features: torch.Tensor,
    filters: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
    algo: ConvAlgo = ConvAlgo.Native,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """As :func:`indice_conv`, of a submanifold layer's pairs and numbers."""
    pairs = indice_pairs, indice_pair_num, num_activate_out
    return ops.indice_conv(features, filters, *pairs, False, True, algo, *args, **kwargs)


def indice_inverse_conv(
    features: torch.Tensor,
    filters: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """Return the features of the way back along pairs; further arguments as :func:`indice_conv`."""
    pairs = indice_pairs.flip(0), indice_pair_num, num_activate_out
    return indice_conv(features, filters, *pairs, *args, **kwargs)


def implicit_gemm(
    features: torch.Tensor,
    filters: torch.Tensor,
    pair_fwd: torch.Tensor,
    pair_bwd: torch.Tensor,
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
    bias: torch.Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
) -> torch.Tensor:
    """Return the features of a convolution of a table ``pair_fwd int32[K, M]``."""
    del pair_bwd, pair_mask_bwd_splits, mask_argsort_bwd_splits
    masked = pair_mask_fwd_splits, mask_argsort_fwd_splits, num_activate_out, masks
    rest = is_train, is_subm, timer, fp32_accum, bias, act_alpha, act_beta, act_type
    return ops.implicit_gemm(features, filters, pair_fwd, *masked, *rest)[0]


def indice_maxpool(
    features: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
) -> torch.Tensor:
    """Return the largest value under each window of pairs, and 0 at least."""
    sizes = indice_pair_num, features.shape[0], num_activate_out
    return MaxPool.apply(features, KernelMap.of_pairs(indice_pairs, *sizes))


def indice_maxpool_implicit_gemm(
    features: torch.Tensor,
    indice_pairs_fwd: torch.Tensor,
    indice_pairs_bwd: torch.Tensor,
    num_activate_out: int,
) -> torch.Tensor:
    """Return the largest value under each window of a table ``int32[K, M]``, and 0 at least."""
    del indice_pairs_bwd, num_activate_out
    return MaxPool.apply(features, ops.table_map(indice_pairs_fwd, features.shape[0]))


def indice_avgpool_implicit_gemm(
    features: torch.Tensor,
    indice_pairs_fwd: torch.Tensor,
    indice_pairs_bwd: torch.Tensor,
    num_activate_out: int,
    calc_count: bool,
) -> torch.Tensor:
    """Return the mean over the voxels under each window of a table ``int32[K, M]``."""
    del indice_pairs_bwd, num_activate_out, calc_count
    return AveragePool.apply(features, ops.table_map(indice_pairs_fwd, features.shape[0]))


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """Return the sum of tensors at different voxels, at the voxels of all in canonical order.

    Pairs of layers before are kept only where one of the tensors has all the voxels.

    Args:
      tens: tensors of one spatial shape, batch size and number of channels.

    Raises:
      SpconvError: none, or tensors that differ in these.
    """
    if not tens:
        raise SpconvError("sparse_add of no tensors: expected one or more")
    first = tens[0]
    for other in tens:
        said = [(x.spatial_shape, x.batch_size, x.features.shape[1]) for x in (first, other)]
        if said[0] != said[1]:
            raise SpconvError(
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


class SparseConvFunction:
    """Name of :func:`indice_conv` for code that calls ``apply``."""

    apply = staticmethod(indice_conv)


class SparseInverseConvFunction:
    """Name of :func:`indice_inverse_conv` for code that calls ``apply``."""

    apply = staticmethod(indice_inverse_conv)


class SubMConvFunction:
    """Name of :func:`indice_subm_conv` for code that calls ``apply``."""

    apply = staticmethod(indice_subm_conv)


class SparseImplicitGemmFunction:
    """Name of :func:`implicit_gemm` for code that calls ``apply``."""

    apply = staticmethod(implicit_gemm)


class SparseMaxPoolFunction:
    """Name of :func:`indice_maxpool` for code that calls ``apply``."""

    apply = staticmethod(indice_maxpool)


class SparseMaxPoolImplicitGemmFunction:
    """Name of :func:`indice_maxpool_implicit_gemm` for code that calls ``apply``."""

    apply = staticmethod(indice_maxpool_implicit_gemm)


class SparseAvgPoolImplicitGemmFunction:
    """Name of :func:`indice_avgpool_implicit_gemm` for code that calls ``apply``."""

    apply = staticmethod(indice_avgpool_implicit_gemm)
