"""Compute convolutions along a kernel map, with gradients of any order.

A layer has three products: its output, the gradient of its features, and the gradient of its
weight. Differentiating any product gives the other two. The native kernels compute the products.
Without native kernels, PyTorch computes them tap by tap.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxax._native import host, host_depthwise, host_products, library
from voxax.torch.core.errors import FLOATS, ArgumentError
from voxax.torch.core.kernel_map import KernelMap, PairMap
from voxax.torch.core.uncompiled import refuse_tracing


def convolve(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """Return the convolution ``y[m] = sum_k features[neighbors[m, k]] @ weight[k] + bias``.

    Args:
      features: ``[N, C_in]``.
      weight: ``[K, C_in, C_out]`` of the same dtype, with any strides. A channelwise layer has
        ``[K, C]``, and ``@`` then multiplies channel by channel.
      kernel_map: map from N input rows to M output rows; ``neighbors`` is its table.
      bias: ``[C_out]``, added to every row; None adds nothing.
      relu: whether to set negative results to 0; ignored if gradients are enabled.

    Returns:
      ``[M, C_out]`` in the dtype of the features; half precision is summed in float32.

    Raises:
      ArgumentError: other dtypes than float32, float64, float16 and bfloat16; or the call is traced
        (:func:`refuse_tracing`).
    """
    if weight.dtype not in FLOATS or features.dtype is not weight.dtype:
        raise ArgumentError(
            f"features of {features.dtype} and a weight of {weight.dtype}: expected both of "
            "float32, float64, float16 or bfloat16; convert with .float()"
        )
    if torch.is_grad_enabled():
        out = _Forward.apply(features, weight, kernel_map)
        # In place: nothing else holds the product.
        return out if bias is None else out.add_(bias.to(out.dtype))
    return _forward(features, weight, kernel_map, bias, relu)


def _forward(
    x: Tensor,
    w: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None = None,
    relu: bool = False,
    back: bool = False,
) -> Tensor:
    """Return :func:`convolve` of features ``x`` and weight ``w``, without gradients.

    If ``back``, ``x`` is the gradient of the output, and the result is the gradient of the
    features.
    """
    if x.dtype is torch.float16:
        return _forward(x.float(), w.float(), kernel_map, bias, relu, back).half()
    dense, threads = w.dim() == 3, torch.get_num_threads()
    w = w.transpose(1, 2) if back and dense else w
    shape = kernel_map.in_rows if back else kernel_map.out_rows, w.shape[-1]
    inverted, reverse = back and not kernel_map.symmetric, back and kernel_map.symmetric
    if natively(kernel_map) and dense:
        y, table = x.new_empty(shape), kernel_map.backwards if inverted else kernel_map.table
        arrays = bits(x), view(w), table.numpy(), bits(y)
        added = None if bias is None else bits(bias.to(x.dtype))
        order = None if inverted else order_of(kernel_map)
        options = {"bias": added, "relu": relu, "reverse": reverse}
        host_products.product(*arrays, order=order, threads=threads, **options)
        return y
    if natively(kernel_map):
        y, table = x.new_empty(shape), kernel_map.backwards if inverted else kernel_map.neighbors
        arrays = bits(x), bits(w), table.numpy(), bits(y)
        host_depthwise.depthwise(*arrays, reverse=reverse, threads=threads)
    else:
        y = x.new_zeros(shape, dtype=_wide(x))
        for outs, ins, tap in kernel_map.by_tap():
            to, source = (ins, outs) if back else (outs, ins)
            rows, weight = x.index_select(0, source).to(y), w[tap].to(y)
            y.index_add_(0, to, rows @ weight if dense else rows * weight)
    y = y if bias is None else y.add_(bias.to(y.dtype))
    return (y.relu_() if relu else y).to(x.dtype)


def _data_gradient(dy: Tensor, w: Tensor, kernel_map: KernelMap) -> Tensor:
    return _forward(dy, w, kernel_map, back=True)


def _weight_gradient(x: Tensor, dy: Tensor, kernel_map: KernelMap, axes: int) -> Tensor:
    if x.dtype is torch.float16:
        return _weight_gradient(x.float(), dy.float(), kernel_map, axes).half()
    threads, dense = torch.get_num_threads(), axes == 3
    shape = (kernel_map.taps, x.shape[1], dy.shape[1])[:axes]
    if not natively(kernel_map):
        dw = x.new_zeros(shape, dtype=_wide(x))
        for outs, ins, tap in kernel_map.by_tap():
            left, right = x.index_select(0, ins).to(dw), dy.index_select(0, outs).to(dw)
            dw[tap] = left.T @ right if dense else (left * right).sum(0)
        return dw.to(x.dtype)
    dw = x.new_empty(shape)
    table = kernel_map.table if dense else kernel_map.neighbors
    arrays = bits(x), bits(dy), table.numpy(), bits(dw)
    if dense:
        host_products.weight_product(*arrays, order=order_of(kernel_map), threads=threads)
    else:
        host_depthwise.depthwise(*arrays, wgrad=True, threads=threads)
    return dw


class _Product(torch.autograd.Function):
    """Base of the autograd functions for a convolution, its data gradient and weight gradient.

    Each function takes two tensors and a kernel map, and saves all three for the backward pass.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        del output
        ctx.save_for_backward(*inputs[:2])
        ctx.kernel_map = inputs[2]


class _Forward(_Product):
    @staticmethod
    def forward(x: Tensor, w: Tensor, kernel_map: KernelMap) -> Tensor:
        return _forward(x, w, kernel_map)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (dy,), (x, w) = grads, ctx.saved_tensors
        wants_x, wants_w, _ = ctx.needs_input_grad
        dx = _DataGradient.apply(dy, w, ctx.kernel_map) if wants_x else None
        dw = _WeightGradient.apply(x, dy, ctx.kernel_map, w.dim()) if wants_w else None
        return dx, dw, None


class _DataGradient(_Product):
    forward = staticmethod(_data_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,), (dy, w) = grads, ctx.saved_tensors
        wants_dy, wants_w, _ = ctx.needs_input_grad
        d_dy = _Forward.apply(g, w, ctx.kernel_map) if wants_dy else None
        d_w = _WeightGradient.apply(g, dy, ctx.kernel_map, w.dim()) if wants_w else None
        return d_dy, d_w, None


class _WeightGradient(_Product):
    forward = staticmethod(_weight_gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (g,), (x, dy) = grads, ctx.saved_tensors
        wants_x, wants_dy, *_ = ctx.needs_input_grad
        d_x = _DataGradient.apply(dy, g, ctx.kernel_map) if wants_x else None
        d_dy = _Forward.apply(x, g, ctx.kernel_map) if wants_dy else None
        return d_x, d_dy, None, None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def order_of(kernel_map: KernelMap) -> np.ndarray | None:
    """Return ``kernel_map.order`` as a NumPy array ``int32[M]``, or None if that is None."""
    return None if kernel_map.order is None else kernel_map.order.numpy()


def bits(tensor: Tensor) -> np.ndarray:
    """Return a tensor as a contiguous NumPy array, copied only if needed.

    bfloat16 values become uint16 values with the same bits.
    """
    return view(tensor.contiguous())


def view(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array with the memory and the strides of a tensor.

    bfloat16 values become uint16 values with the same bits.
    """
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def natively(kernel_map: KernelMap) -> bool:
    """Return True if native kernels can compute along ``kernel_map``; warn once if there are none.

    Native kernels need the table that a :class:`PairMap` lacks. Raises the error of
    :func:`refuse_tracing`.
    """
    refuse_tracing()
    if host.available():
        return not isinstance(kernel_map, PairMap)
    _warn_slow()
    return False


@functools.cache
def _warn_slow() -> None:
    warnings.warn(
        f"{library()[1]}: voxax.torch multiplies with PyTorch, many times slower. Install "
        "voxax with a C++ compiler, or one of its wheels",
        stacklevel=2,
    )
