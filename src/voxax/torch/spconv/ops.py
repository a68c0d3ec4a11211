"""Build spconv's pairs of rows (kernel maps), and convolve and pool along them.

These functions are for code that calls spconv's functions instead of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError, whole
from voxax.torch.core.kernel_map import KernelMap, Sizes
from voxax.torch.core.pooling import extreme, mean
from voxax.torch.core.products import convolve
from voxax.torch.spconv.algo import Activation, ConvAlgo
from voxax.torch.spconv.algo import AlgoHint as AlgoHint
from voxax.torch.spconv.constants import ALL_WEIGHT_IS_KRSC as ALL_WEIGHT_IS_KRSC
from voxax.torch.spconv.constants import FILTER_HWIO as FILTER_HWIO
from voxax.torch.spconv.constants import SPCONV_DO_SORT as SPCONV_DO_SORT
from voxax.torch.spconv.constants import SPCONV_USE_DIRECT_TABLE as SPCONV_USE_DIRECT_TABLE
from voxax.torch.spconv.core import Sites, full_numbers, listed_numbers

CPU_ONLY_BUILD = True
DEBUG = False
DEBUG_INT64_HASH_K = False
INT32_MAX = 2**31 - 1


def get_current_stream() -> int:
    """Return 0, because a CPU has no streams."""
    return 0


def get_conv_output_size(
    input_size: Sizes, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> list[int]:
    """Return the spatial shape after a convolution; an axis with kernel size -1 gets size 1.

    Each argument has one integer per axis.
    """
    sizes = zip(*_whole_sizes(input_size, kernel_size, stride, padding, dilation), strict=True)
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
    """Return the spatial shape after a transposed convolution.

    Each argument has one integer per axis. As in spconv, ``dilation`` is ignored.
    """
    del dilation
    given = _whole_sizes(input_size, kernel_size, stride, padding, output_padding)
    if min(given[1]) < 0:
        raise ArgumentError(f"kernel_size {given[1]} of a transposed layer: 1 or more")
    sizes = zip(*given, strict=True)
    return [(n - 1) * s - 2 * p + k + extra for n, k, s, p, extra in sizes]


def relation(
    sites: Sites,
    sizes: Sequence[Sizes],
    subm: bool,
    transposed: bool = False,
    output_padding: Sizes = (),
) -> tuple[KernelMap, Sites]:
    """Return the kernel map of a layer, and its output voxels.

    Args:
      sites: input voxels of the layer.
      sizes: kernel size, stride, padding and dilation, each with one integer per axis.
      subm, transposed, output_padding: as in the convolution layers.
    """
    if subm:
        return sites.submanifold(sizes[0], sizes[3]), sites
    if transposed:
        shape = sites.spatial_shape
        shape = get_deconv_output_size(shape, *sizes, output_padding=output_padding)
    else:
        shape = get_conv_output_size(sites.spatial_shape, *sizes)
    return sites.reached(*sizes, shape, transposed=transposed)


def get_indice_pairs(
    indices: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer's output indices, its pairs of rows, and the number of pairs of each tap.

    For N inputs, M outputs and K taps, the output indices are ``int32[M, 1 + D]``. The pairs are
    ``int32[2, K, N]``, first the input rows, then the output rows, with -1 after the last pair of a
    tap. The numbers are ``int32[K]``. For a submanifold layer they are 0 from the center tap on,
    because these numbers follow from symmetry.

    The arguments are those of the layers, with one integer per axis; ``num_out_act_bound`` is
    ignored.

    Raises:
      SpconvError: errors of the layers, or an algorithm other than ``ConvAlgo.Native``.
    """
    del num_out_act_bound
    if algo is not ConvAlgo.Native:
        raise ArgumentError(f"algo={algo}: get_indice_pairs is for ConvAlgo.Native")
    sites, sizes = Sites(indices, spatial_shape, batch_size), (ksize, stride, padding, dilation)
    kernel_map, out = relation(sites, _whole_sizes(*sizes), subm, transpose, out_padding)
    pairs, numbers = kernel_map.pairs()
    return out.indices, pairs, listed_numbers(numbers) if subm else numbers


def get_indice_pairs_implicit_gemm(
    indices: Tensor,
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
    """Return a layer's output indices, the number of pairs of each tap, two tables and five masks.

    For N inputs, M outputs and K taps, the output indices are ``int32[M, 1 + D]`` and the numbers
    ``int32[K]``. The first table, ``int32[K, M]``, has the input row of each tap and output row.
    The second table, ``int32[K, N]``, has the output row of each tap and input row; it is empty
    unless ``is_train``. -1 means no row. The masks are for GPU kernels and have no meaning here.

    The arguments are those of the layers; ``alloc``, ``timer``, ``num_out_act_bound``,
    ``direct_table`` and ``do_sort`` are ignored.

    Raises:
      SpconvError: errors of the layers, or ``algo`` is ``ConvAlgo.Native``.
    """
    del alloc, timer, num_out_act_bound, direct_table, do_sort
    if algo is ConvAlgo.Native:
        raise ArgumentError("algo=ConvAlgo.Native: that is what get_indice_pairs is for")
    sites, sizes = Sites(indices, spatial_shape, batch_size), (ksize, stride, padding, dilation)
    kernel_map, out = relation(sites, _whole_sizes(*sizes), subm, transpose, out_padding)
    numbers = (kernel_map.neighbors >= 0).sum(0, dtype=torch.int32)
    forwards = kernel_map.neighbors.t().contiguous()
    backwards = kernel_map.backwards.t().contiguous() if is_train else torch.empty(0)
    masks = [np.full(1, 0xFFFFFFFF, np.uint32)]
    return out.indices, numbers, forwards, backwards, [], [], [], [], masks


def _map_of(
    pairs: Tensor, numbers: Tensor, rows: int, outs: int, inverse: bool = False, subm: bool = False
) -> KernelMap:
    numbers = full_numbers(numbers, rows) if subm else numbers
    return KernelMap.of_pairs(pairs.flip(0) if inverse else pairs, numbers, rows, outs)


def by_tap(filters: Tensor) -> Tensor:
    """View filters ``[C_out, *kernel_size, C_in]`` as ``[K, C_in, C_out]`` for K taps."""
    return filters.reshape(filters.shape[0], -1, filters.shape[-1]).permute(1, 2, 0)


def table_map(pair_fwd: Tensor, in_rows: int) -> KernelMap:
    """Return the kernel map of a table of the input rows that output rows read.

    ``pair_fwd int32[K, M]`` is the table: the input row of each of K taps and M output rows, or -1.
    ``in_rows`` is the number of input rows.
    """
    return KernelMap(pair_fwd.t().contiguous(), in_rows)


def activate(x: Tensor, act_type: Activation, alpha: float) -> Tensor:
    """Return ``x`` after the activation ``act_type``; ``alpha`` is the slope of a leaky ReLU.

    ``Activation.None_`` returns ``x`` unchanged.
    """
    if act_type is Activation.ReLU:
        return torch.relu(x)
    if act_type is Activation.Sigmoid:
        return torch.sigmoid(x)
    if act_type is Activation.LeakyReLU:
        return torch.nn.functional.leaky_relu(x, alpha)
    return x


def indice_conv(
    features: Tensor,
    filters: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
    num_activate_out: int,
    inverse: bool = False,
    subm: bool = False,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
    bias: Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
) -> Tensor:
    """Return the convolution ``[num_activate_out, C_out]`` along pairs of :func:`get_indice_pairs`.

    ``features`` is ``[N, C_in]``, and ``filters`` is ``[C_out, *kernel_size, C_in]``. ``inverse``
    exchanges input and output rows of the pairs. ``subm`` is as in :func:`get_indice_pairs`. The
    activation ``act_type`` is applied last, as in :func:`activate`. ``algo``, ``timer`` and
    ``act_beta`` are ignored.
    """
    del algo, timer, act_beta
    sizes = indice_pair_num, features.shape[0], num_activate_out, inverse, subm
    out = convolve(features, by_tap(filters), _map_of(indice_pairs, *sizes))
    return activate(out if bias is None else out + bias, act_type, act_alpha)


def indice_conv_backward(
    features: Tensor,
    filters: Tensor,
    out_bp: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
    inverse: bool = False,
    subm: bool = False,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``features`` and ``filters`` in :func:`indice_conv`.

    ``out_bp [num_activate_out, C_out]`` is the gradient of the output. Other arguments are as in
    :func:`indice_conv`.
    """
    del algo, timer
    sizes = indice_pair_num, features.shape[0], out_bp.shape[0], inverse, subm
    return _gradients(features, filters, out_bp, _map_of(indice_pairs, *sizes))


def implicit_gemm(
    features: Tensor,
    filters: Tensor,
    pair_fwd: Tensor,
    pair_mask_fwd_splits: Any = None,
    mask_argsort_fwd_splits: Any = None,
    num_activate_out: int = -1,
    masks: Any = None,
    is_train: bool = True,
    is_subm: bool = False,
    timer: Any = None,
    fp32_accum: bool | None = None,
    bias: Tensor | None = None,
    act_alpha: float = 0.0,
    act_beta: float = 0.0,
    act_type: Activation = Activation.None_,
    output_scale: float = 1.0,
    scale: Tensor | None = None,
    output_add: Tensor | None = None,
    output_add_scale: float = 0.0,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, None, int]:
    """Return the convolution ``[M, C_out]`` along a table of input rows, then None and -1.

    ``features`` is ``[N, C_in]``, and ``filters`` is ``[C_out, *kernel_size, C_in]``.
    ``pair_fwd int32[K, M]`` is the input row of each tap and output row, or -1. None and -1 take
    the place of two values of spconv's GPU kernels. Arguments that only these kernels need are
    ignored, such as the masks.

    Raises:
      SpconvError: arguments of quantized inference, which runs on GPUs only.
    """
    del pair_mask_fwd_splits, mask_argsort_fwd_splits, masks, is_train, is_subm, timer, fp32_accum
    del num_activate_out, output_add_scale, act_beta
    if output_add is not None or scale is not None or output_scale != 1.0:
        raise ArgumentError("output_add, scale and output_scale are for int8, which GPUs have only")
    out = convolve(features, by_tap(filters), table_map(pair_fwd, features.shape[0]))
    out = activate(out if bias is None else out + bias, act_type, act_alpha)
    return out if output_dtype is None else out.to(output_dtype), None, -1


def implicit_gemm_backward(
    features: Tensor, filters: Tensor, out_bp: Tensor, pair_fwd: Tensor, *rest: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``features`` and ``filters`` in :func:`implicit_gemm`.

    ``out_bp`` is the gradient of the output. Arguments after ``pair_fwd`` are ignored.
    """
    del rest, options
    return _gradients(features, filters, out_bp, table_map(pair_fwd, features.shape[0]))


def _gradients(
    features: Tensor, filters: Tensor, out_bp: Tensor, kernel_map: KernelMap
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x, w = features.detach().requires_grad_(), filters.detach().requires_grad_()
        out = convolve(x, by_tap(w), kernel_map)
    dx, dw = torch.autograd.grad(out, (x, w), out_bp)
    return dx, dw


def largest(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the largest value that each of M output rows reads in each channel, ``[M, C]``.

    ``features`` is ``[N, C]``. Results below 0 are replaced by 0.
    """
    return extreme(features, kernel_map).clamp_(min=0)


def largest_backward(features: Tensor, out: Tensor, grad: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return the gradient ``[N, C]`` of the features in :func:`largest`.

    ``grad`` is the gradient of the result ``out``. Every feature that equals the result of its
    window receives the window's full gradient.
    """
    total = torch.zeros_like(features, dtype=torch.promote_types(features.dtype, torch.float32))
    for rows, ins, _ in kernel_map.by_tap():
        total.index_add_(0, ins, torch.where(features[ins] == out[rows], grad[rows], 0).to(total))
    return total.to(features.dtype)


def average_backward(grad: Tensor, kernel_map: KernelMap, number: Tensor) -> Tensor:
    """Return spconv's gradient ``[N, C]`` of the features in a mean over windows.

    ``grad [M, C]`` is the gradient of the means. spconv multiplies it by ``number [M]``, the voxel
    count of each window. For the true gradient it would have to be divided by the count.
    """
    wide = torch.promote_types(grad.dtype, torch.float32)
    scaled = grad.to(wide) * number[:, None].to(wide)
    total = scaled.new_zeros((kernel_map.in_rows, grad.shape[1]))
    for rows, ins, _ in kernel_map.by_tap():
        total.index_add_(0, ins, scaled[rows])
    return total.to(grad.dtype)


def indice_maxpool(
    features: Tensor, indice_pairs: Tensor, indice_pair_num: Tensor, num_activate_out: int
) -> Tensor:
    """Return each output row's maximum over its input rows, at least 0: ``[num_activate_out, C]``.

    ``features`` is ``[N, C]``. ``indice_pairs`` and ``indice_pair_num``, the pairs of rows and
    their numbers, are results of :func:`get_indice_pairs`.
    """
    sizes = indice_pair_num, features.shape[0], num_activate_out
    return largest(features, _map_of(indice_pairs, *sizes))


def indice_maxpool_backward(
    features: Tensor,
    out_features: Tensor,
    out_bp: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
) -> Tensor:
    """Return the gradient ``[N, C]`` of ``features`` in :func:`indice_maxpool`.

    ``out_bp`` is the gradient of the result, and ``out_features`` is the result itself. Other
    arguments are as in :func:`indice_maxpool`.
    """
    sizes = indice_pair_num, features.shape[0], out_bp.shape[0]
    return largest_backward(features, out_features, out_bp, _map_of(indice_pairs, *sizes))


def indice_maxpool_implicit_gemm(
    features: Tensor, indice_pairs: Tensor, num_activate_out: int
) -> Tensor:
    """Return each output row's maximum over its input rows, at least 0: ``[M, C]``.

    ``indice_pairs int32[K, M]`` has the input row of each tap and output row, or -1.
    ``num_activate_out`` is ignored.
    """
    del num_activate_out
    return largest(features, table_map(indice_pairs, features.shape[0]))


def indice_maxpool_implicit_gemm_backward(
    features: Tensor, out_features: Tensor, out_bp: Tensor, indice_pairs: Tensor
) -> Tensor:
    """Return the gradient ``[N, C]`` of features in :func:`indice_maxpool_implicit_gemm`.

    ``out_bp`` is the gradient of the result, and ``out_features`` is the result itself. Here
    ``indice_pairs int32[K, N]`` has the output row of each tap and input row, or -1.
    """
    kernel_map = table_map(indice_pairs, out_bp.shape[0]).transpose()
    return largest_backward(features, out_features, out_bp, kernel_map)


def indice_avgpool_implicit_gemm(
    features: Tensor, indice_pairs: Tensor, num_activate_out: int, calc_count: bool
) -> tuple[Tensor, Tensor]:
    """Return each output row's mean over its input rows, ``[M, C]``, and the number of these rows.

    ``indice_pairs int32[K, M]`` has the input row of each tap and output row, or -1. The numbers
    are ``int32[M]``, and empty unless ``calc_count``. ``num_activate_out`` is ignored.
    """
    del num_activate_out
    count = (indice_pairs >= 0).sum(0, dtype=torch.int32) if calc_count else torch.empty(0)
    return mean(features, table_map(indice_pairs, features.shape[0])), count


def indice_avgpool_implicit_gemm_backward(
    out_bp: Tensor, indice_pairs: Tensor, count_out: Tensor
) -> Tensor:
    """Return spconv's gradient ``[N, C]`` of features in :func:`indice_avgpool_implicit_gemm`.

    ``out_bp`` is the gradient of the means, and ``count_out`` the numbers of input rows. Here
    ``indice_pairs int32[K, N]`` has the output row of each tap and input row, or -1.
    """
    kernel_map = table_map(indice_pairs, out_bp.shape[0]).transpose()
    return average_backward(out_bp, kernel_map, count_out)


def maximum_value_int_(ten: Tensor, value: int) -> None:
    """Set every element of ``ten`` that is below ``value`` to ``value``, in place."""
    ten.clamp_(min=whole("value", value))


def global_pool_rearrange(coords: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return the rows of each scene, ``int32[B, N]``, and each scene's row count, ``int32[B]``.

    Entries after the last row of a scene are 0. ``coords int32[N, 1 + D]`` has the batch index in
    column 0, and B is ``batch_size``.
    """
    scene, batch_size = coords[:, 0].long(), whole("batch_size", batch_size)
    counts = torch.bincount(scene, minlength=batch_size).to(torch.int32)
    rows = coords.new_zeros((batch_size, coords.shape[0]))
    for index in range(batch_size):
        found = torch.nonzero(scene == index).flatten()
        rows[index, : len(found)] = found.to(torch.int32)
    return rows, counts
