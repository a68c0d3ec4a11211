"""spconv's functions on pairs, for code that calls them itself; the layers need none but sizes."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from voxax.torch.spconv.algo import Activation, AlgoHint, ConvAlgo
from voxax.torch.spconv.constants import (
    ALL_WEIGHT_IS_KRSC,
    FILTER_HWIO,
    SPCONV_DO_SORT,
    SPCONV_USE_DIRECT_TABLE,
    AllocKeys,
)
from voxax.torch.spconv.errors import SpconvError, whole
from voxax.torch.spconv.kernel_map import KernelMap, full_numbers, listed_numbers
from voxax.torch.spconv.pooling import average, average_backward, largest, largest_backward
from voxax.torch.spconv.products import convolve
from voxax.torch.spconv.sites import Sites

__all__ = [
    "ALL_WEIGHT_IS_KRSC",
    "FILTER_HWIO",
    "SPCONV_DO_SORT",
    "SPCONV_USE_DIRECT_TABLE",
    "AlgoHint",
    "AllocKeys",
    "ConvAlgo",
]

CPU_ONLY_BUILD = True
DEBUG = False
DEBUG_INT64_HASH_K = False
INT32_MAX = 2**31 - 1

Sizes = Sequence[int]


def get_current_stream() -> int:
    """Return 0: a CPU has no streams."""
    return 0


def get_conv_output_size(
    input_size: Sizes, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> list[int]:
    """Return the spatial shape behind a convolution; an axis of kernel size -1 becomes 1."""
    given = _whole_sizes(input_size, kernel_size, stride, padding, dilation)
    sizes = zip(*given, strict=True)
    return [1 if k == -1 else (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]


def _whole_sizes(*sizes: Sizes) -> tuple[list[int], ...]:
    return tuple([whole("a size", size) for size in given] for given in sizes)


def get_deconv_output_size(
    input_size: Sizes,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    output_padding: Sizes,
) -> list[int]:
    """Return the spatial shape behind a transposed convolution. As in spconv, without dilation.

    Raises:
      SpconvError: a kernel size below 0.
    """
    del dilation
    given = _whole_sizes(input_size, kernel_size, stride, padding, output_padding)
    if min(given[1]) < 0:
        raise SpconvError(f"kernel_size {given[1]} of a transposed layer: 1 or more")
    sizes = zip(*given, strict=True)
    return [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in sizes]


def _relation(
    indices: torch.Tensor,
    batch_size: int,
    spatial_shape: Sizes,
    sizes: tuple[Sizes, ...],
    out_padding: Sizes,
    subm: bool,
    transpose: bool,
) -> tuple[torch.Tensor, KernelMap]:
    sites = Sites(indices, spatial_shape, batch_size)
    kernel_size, stride, padding, dilation = _whole_sizes(*sizes)
    sizes = kernel_size, stride, padding, dilation
    if subm:
        return indices, sites.submanifold(kernel_size, dilation)
    if transpose:
        shape = get_deconv_output_size(spatial_shape, *sizes, out_padding)
    else:
        shape = get_conv_output_size(spatial_shape, *sizes)
    kernel_map, out = sites.reached(*sizes, shape, transpose)
    return out.indices, kernel_map


def get_indice_pairs(
    indices: torch.Tensor,
    batch_size: int,
    spatial_shape: Sizes,
    algo: ConvAlgo,
    ksize: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    out_padding: Sizes,
    subm: bool = False,
    transpose: bool = False,
    num_out_act_bound: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return output indices ``int32[M, 1 + D]``, pairs ``int32[2, K, N]`` and pairs of each tap.

    Arguments as the layers have them, one integer per axis. A submanifold layer's numbers are 0
    from the center on, since symmetry gives them. ``num_out_act_bound`` means nothing here.

    Raises:
      SpconvError: as the layers; or an algorithm other than ``ConvAlgo.Native``.
    """
    del num_out_act_bound
    if algo is not ConvAlgo.Native:
        raise SpconvError(f"algo={algo}: get_indice_pairs is for ConvAlgo.Native")
    sizes = ksize, stride, padding, dilation
    relation = indices, batch_size, spatial_shape, sizes, out_padding, subm, transpose
    out, kernel_map = _relation(*relation)
    pairs, numbers = kernel_map.pairs()
    return out, pairs, listed_numbers(numbers) if subm else numbers


def get_indice_pairs_implicit_gemm(
    indices: torch.Tensor,
    batch_size: int,
    spatial_shape: Sizes,
    algo: ConvAlgo,
    ksize: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    out_padding: Sizes,
    subm: bool = False,
    transpose: bool = False,
    is_train: bool = True,
    alloc: Any = None,
    timer: Any = None,
    num_out_act_bound: int = -1,
    direct_table: bool = SPCONV_USE_DIRECT_TABLE,
    do_sort: bool = SPCONV_DO_SORT,
) -> tuple[Any, ...]:
    """Return spconv's nine values: output indices, pairs of each tap, tables and masks.

    ``pair_fwd int32[K, M]`` and ``pair_bwd int32[K, N]`` hold rows or -1. Masks and their order
    are those of a GPU kernel and empty here. Arguments as the layers have them; ``alloc``,
    ``timer``, ``num_out_act_bound``, ``direct_table`` and ``do_sort`` mean nothing.

    Raises:
      SpconvError: as the layers; or ``ConvAlgo.Native``.
    """
    del alloc, timer, num_out_act_bound, direct_table, do_sort
    if algo is ConvAlgo.Native:
        raise SpconvError("algo=ConvAlgo.Native: that is what get_indice_pairs is for")
    sizes = ksize, stride, padding, dilation
    relation = indices, batch_size, spatial_shape, sizes, out_padding, subm, transpose
    out, kernel_map = _relation(*relation)
    numbers = (kernel_map.neighbors >= 0).sum(0, dtype=torch.int32)
    forwards = kernel_map.neighbors.t().contiguous()
    backwards = kernel_map.backwards.t().contiguous() if is_train else torch.empty(0)
    masks = [np.full(1, 0xFFFFFFFF, np.uint32)]
    return out, numbers, forwards, backwards, [], [], [], [], masks


def _map_of(
    indice_pairs: torch.Tensor,
    numbers: torch.Tensor,
    rows: int,
    outs: int,
    inverse: bool = False,
    subm: bool = False,
) -> KernelMap:
    pairs = indice_pairs.flip(0) if inverse else indice_pairs
    numbers = full_numbers(numbers, rows) if subm else numbers
    return KernelMap.of_pairs(pairs, numbers, rows, outs)


def table_map(pair_fwd: torch.Tensor, in_rows: int) -> KernelMap:
    """Return the map of ``pair_fwd int32[K, M]``."""
    return KernelMap(pair_fwd.t().contiguous(), in_rows)


def indice_conv(
    features: torch.Tensor,
    filters: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
    inverse: bool = False,
    subm: bool = False,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
    bias: torch.Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
) -> torch.Tensor:
    """Return ``[num_activate_out, C_out]`` of pairs as :func:`get_indice_pairs` gives them."""
    del algo, timer, act_beta
    sizes = indice_pair_num, features.shape[0], num_activate_out, inverse, subm
    out = convolve(features, filters, _map_of(indice_pairs, *sizes))
    return activate(out if bias is None else out + bias, act_type, act_alpha)


def indice_conv_backward(
    features: torch.Tensor,
    filters: torch.Tensor,
    out_bp: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    inverse: bool = False,
    subm: bool = False,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of features and filters."""
    del algo, timer
    sizes = indice_pair_num, features.shape[0], out_bp.shape[0], inverse, subm
    return _gradients(features, filters, out_bp, _map_of(indice_pairs, *sizes))


def implicit_gemm(
    features: torch.Tensor,
    filters: torch.Tensor,
    pair_fwd: torch.Tensor,
    pair_mask_fwd_splits: Any = None,
    mask_argsort_fwd_splits: Any = None,
    num_activate_out: int = -1,
    masks: Any = None,
    is_train: bool = True,
    is_subm: bool = False,
    timer: Any = None,
    fp32_accum: bool | None = None,
    bias: torch.Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
    output_scale: float = 1.0,
    scale: torch.Tensor | None = None,
    output_add: torch.Tensor | None = None,
    output_add_scale: float = 0.0,
    output_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, None, int]:
    """Return ``[M, C_out]`` of a table ``pair_fwd int32[K, M]``, and two values without meaning.

    Raises:
      SpconvError: arguments of quantized inference, which runs on GPUs only.
    """
    del pair_mask_fwd_splits, mask_argsort_fwd_splits, masks, is_train, is_subm, timer, fp32_accum
    del num_activate_out, output_add_scale, act_beta
    if output_add is not None or scale is not None or output_scale != 1.0:
        raise SpconvError("output_add, scale and output_scale are for int8, which GPUs have only")
    out = convolve(features, filters, table_map(pair_fwd, features.shape[0]))
    out = activate(out if bias is None else out + bias, act_type, act_alpha)
    return out if output_dtype is None else out.to(output_dtype), None, -1


def implicit_gemm_backward(
    features: torch.Tensor,
    filters: torch.Tensor,
    out_bp: torch.Tensor,
    pair_fwd: torch.Tensor,
    pair_bwd: torch.Tensor,
    *masks: Any,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of features and filters; masks and options mean nothing."""
    del pair_bwd, masks, options
    kernel_map = table_map(pair_fwd, features.shape[0])
    return _gradients(features, filters, out_bp, kernel_map)


def _gradients(
    features: torch.Tensor, filters: torch.Tensor, out_bp: torch.Tensor, kernel_map: KernelMap
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.enable_grad():
        x, w = features.detach().requires_grad_(), filters.detach().requires_grad_()
        out = convolve(x, w, kernel_map)
    dx, dw = torch.autograd.grad(out, (x, w), out_bp)
    return dx, dw


def activate(x: torch.Tensor, act_type: Activation, alpha: float) -> torch.Tensor:
    """Apply the function behind a layer."""
    if act_type is Activation.ReLU:
        return torch.relu(x)
    if act_type is Activation.Sigmoid:
        return torch.sigmoid(x)
    if act_type is Activation.LeakyReLU:
        return torch.nn.functional.leaky_relu(x, alpha)
    return x


def fused_indice_conv(*args: Any, **kwargs: Any) -> None:
    """Raise, as in spconv: never written."""
    raise NotImplementedError("fused_indice_conv: spconv has the name only")


def indice_maxpool(
    features: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
    num_activate_out: int,
) -> torch.Tensor:
    """Return the largest value under each window, and 0 at least, as spconv does for pairs."""
    sizes = indice_pair_num, features.shape[0], num_activate_out
    return largest(features, _map_of(indice_pairs, *sizes))


def indice_maxpool_backward(
    features: torch.Tensor,
    out_features: torch.Tensor,
    out_bp: torch.Tensor,
    indice_pairs: torch.Tensor,
    indice_pair_num: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the features: every equal value under a window has it."""
    sizes = indice_pair_num, features.shape[0], out_bp.shape[0]
    return largest_backward(features, out_features, out_bp, _map_of(indice_pairs, *sizes))


def indice_maxpool_implicit_gemm(
    features: torch.Tensor, indice_pairs: torch.Tensor, num_activate_out: int
) -> torch.Tensor:
    """Return the largest value under each window of a table ``int32[K, M]``, and 0 at least."""
    del num_activate_out
    return largest(features, table_map(indice_pairs, features.shape[0]))


def indice_maxpool_implicit_gemm_backward(
    features: torch.Tensor,
    out_features: torch.Tensor,
    out_bp: torch.Tensor,
    indice_pairs: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the features, from the table backwards ``int32[K, N]``."""
    kernel_map = table_map(indice_pairs, out_bp.shape[0]).transpose()
    return largest_backward(features, out_features, out_bp, kernel_map)


def indice_avgpool_implicit_gemm(
    features: torch.Tensor, indice_pairs: torch.Tensor, num_activate_out: int, calc_count: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean over the voxels under each window, and their number if asked for."""
    del num_activate_out
    kernel_map = table_map(indice_pairs, features.shape[0])
    count = (indice_pairs >= 0).sum(0, dtype=torch.int32) if calc_count else torch.empty(0)
    return average(features, kernel_map), count


def indice_avgpool_implicit_gemm_backward(
    out_bp: torch.Tensor, indice_pairs: torch.Tensor, count_out: torch.Tensor
) -> torch.Tensor:
    """Return spconv's gradient: what comes back is multiplied by the number, not divided."""
    kernel_map = table_map(indice_pairs, out_bp.shape[0]).transpose()
    return average_backward(out_bp, kernel_map, count_out)


def maximum_value_int_(ten: torch.Tensor, value: int) -> None:
    """Raise every element below ``value`` to it, in place."""
    ten.clamp_(min=whole("value", value))


def global_pool_rearrange(
    coords: torch.Tensor, batch_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of each scene ``int32[batch_size, N]`` and their number.

    Behind a scene's last row stands nothing of meaning.
    """
    scene, batch_size = coords[:, 0].long(), whole("batch_size", batch_size)
    counts = torch.bincount(scene, minlength=batch_size).to(torch.int32)
    rows = coords.new_zeros((batch_size, coords.shape[0]))
    for index in range(batch_size):
        found = torch.nonzero(scene == index).flatten()
        rows[index, : len(found)] = found.to(torch.int32)
    return rows, counts
