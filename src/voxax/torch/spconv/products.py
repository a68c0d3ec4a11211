"""The three products of a layer, with gradients of any order.

They are bilinear and closed under differentiation: the gradient of each is written with the other
two. The native kernels run them; without these, PyTorch does, tap by tap.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch

from voxax._native import host, host_products, library
from voxax.torch.spconv.kernel_map import KernelMap, PairMap


def convolve(
    features: torch.Tensor,
    weight: torch.Tensor,
    kernel_map: KernelMap,
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    """Return ``y[m] = sum_k features[neighbors[m, k]] @ weight[:, k].T + bias``.

    Args:
      features: ``[N, C_in]``.
      weight: ``[C_out, *kernel_size, C_in]`` of the same dtype; the kernel has the map's taps.
      kernel_map: from these rows.
      bias: ``[C_out]``, added to every row.
      relu: set negative results to 0; then gradients are off.

    Returns:
      ``[M, C_out]`` of that dtype; half precision is summed in float32.
    """
    flat = weight.reshape(weight.shape[0], -1, weight.shape[-1])
    if torch.is_grad_enabled():
        out = _Forward.apply(features, flat, kernel_map)
        # In place: nothing else holds the product.
        return out if bias is None else out.add_(bias.to(out.dtype))
    return _forward(features, flat, kernel_map, bias, relu)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.kernel_map = kernel_map
        return _forward(x, w, kernel_map)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (dy,) = grads
        x, w = ctx.saved_tensors
        wants_x, wants_w, _ = ctx.needs_input_grad
        dx = _DataGradient.apply(dy, w, ctx.kernel_map) if wants_x else None
        dw = _WeightGradient.apply(x, dy, ctx.kernel_map) if wants_w else None
        return dx, dw, None


class _DataGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dy: torch.Tensor, w: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        ctx.save_for_backward(dy, w)
        ctx.kernel_map = kernel_map
        return _data_gradient(dy, w, kernel_map)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (g,) = grads
        dy, w = ctx.saved_tensors
        wants_dy, wants_w, _ = ctx.needs_input_grad
        d_dy = _Forward.apply(g, w, ctx.kernel_map) if wants_dy else None
        d_w = _WeightGradient.apply(g, dy, ctx.kernel_map) if wants_w else None
        return d_dy, d_w, None


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dy: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        ctx.save_for_backward(x, dy)
        ctx.kernel_map = kernel_map
        return _weight_gradient(x, dy, kernel_map)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (g,) = grads
        x, dy = ctx.saved_tensors
        wants_x, wants_dy, _ = ctx.needs_input_grad
        d_x = _DataGradient.apply(dy, g, ctx.kernel_map) if wants_x else None
        d_dy = _Forward.apply(x, g, ctx.kernel_map) if wants_dy else None
        return d_x, d_dy, None


def _forward(
    x: torch.Tensor,
    w: torch.Tensor,
    kernel_map: KernelMap,
    bias: torch.Tensor | None = None,
    relu: bool = False,
) -> torch.Tensor:
    if x.dtype is torch.float16:
        return _forward(x.float(), w.float(), kernel_map, bias, relu).half()
    if natively(kernel_map):
        y = x.new_empty((kernel_map.out_rows, w.shape[0]))
        arrays = bits(x), view(w.permute(1, 2, 0)), kernel_map.table.numpy(), bits(y)
        added = None if bias is None else bits(bias.to(x.dtype))
        options = {"order": order_of(kernel_map), "bias": added, "relu": relu}
        host_products.product(*arrays, threads=torch.get_num_threads(), **options)
        return y
    y = x.new_zeros((kernel_map.out_rows, w.shape[0]), dtype=_wide(x))
    for rows, ins, tap in kernel_map.by_tap():
        y.index_add_(0, rows, x.index_select(0, ins).to(y.dtype) @ w[:, tap].T.to(y.dtype))
    y = y if bias is None else y.add_(bias.to(y.dtype))
    return (y.relu_() if relu else y).to(x.dtype)


def _data_gradient(dy: torch.Tensor, w: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    if dy.dtype is torch.float16:
        return _data_gradient(dy.float(), w.float(), kernel_map).half()
    if natively(kernel_map):
        dx = dy.new_empty((kernel_map.in_rows, w.shape[2]))
        same = kernel_map.symmetric
        table = (kernel_map.table if same else kernel_map.backwards).numpy()
        arrays = bits(dy), view(w.transpose(0, 1)), table, bits(dx)
        options = {"order": order_of(kernel_map) if same else None, "reverse": same}
        host_products.product(*arrays, threads=torch.get_num_threads(), **options)
        return dx
    dx = dy.new_zeros((kernel_map.in_rows, w.shape[2]), dtype=_wide(dy))
    for rows, ins, tap in kernel_map.by_tap():
        dx.index_add_(0, ins, dy.index_select(0, rows).to(dx.dtype) @ w[:, tap].to(dx.dtype))
    return dx.to(dy.dtype)


def _weight_gradient(x: torch.Tensor, dy: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    if x.dtype is torch.float16:
        return _weight_gradient(x.float(), dy.float(), kernel_map).half()
    if natively(kernel_map):
        dw = x.new_empty((kernel_map.taps, x.shape[1], dy.shape[1]))
        arrays = bits(x), bits(dy), kernel_map.table.numpy(), bits(dw)
        order, threads = order_of(kernel_map), torch.get_num_threads()
        host_products.weight_product(*arrays, order=order, threads=threads)
        return dw.permute(2, 0, 1)
    dw = x.new_zeros((dy.shape[1], kernel_map.taps, x.shape[1]), dtype=_wide(x))
    for rows, ins, tap in kernel_map.by_tap():
        dw[:, tap] = dy.index_select(0, rows).to(dw.dtype).T @ x.index_select(0, ins).to(dw.dtype)
    return dw.to(x.dtype)


def _wide(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def order_of(kernel_map: KernelMap) -> np.ndarray | None:
    """Return the output rows of the map's table, None where they are in order."""
    return None if kernel_map.order is None else kernel_map.order.numpy()


def bits(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor's memory, a dense copy's where it is not; bfloat16 as its bits."""
    return view(tensor.contiguous())


def view(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor's memory with its strides; bfloat16 as its bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def natively(kernel_map: KernelMap) -> bool:
    """Return whether the native kernels run, which read tables; without any, warn once."""
    if host.available():
        return not isinstance(kernel_map, PairMap)
    _warn_slow()
    return False


@functools.cache
def _warn_slow() -> None:
    warnings.warn(
        f"{library()[1]}: voxax.torch.spconv multiplies with PyTorch, many times slower. Install "
        "voxax with a C++ compiler, or one of its wheels",
        stacklevel=2,
    )
