"""The three products of a layer as PyTorch operators, each the derivative of the others.

``voxax::forward``, ``voxax::dgrad`` and ``voxax::wgrad`` are those of
:mod:`voxax.products.primitives`. They are bilinear and closed under differentiation, so the
gradient of each is written with the other two, and gradients of any order follow.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, and not there where types are checked.

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import torch

from voxax.torch.bridge import call
from voxax.torch.static_text import read_layer

Tensors = Sequence[torch.Tensor]


@functools.lru_cache(maxsize=4096)
def _forward_program(text: str) -> Any:
    layer = read_layer(text)

    def forward(x: jax.Array, w: jax.Array, *views: jax.Array) -> jax.Array:
        return layer.forward(x, w, layer.kernel_map(x.shape[0], views[0].shape[0], views))

    return jax.jit(forward)


@functools.lru_cache(maxsize=4096)
def _dgrad_program(text: str) -> Any:
    layer = read_layer(text)

    def dgrad(dy: jax.Array, w: jax.Array, *views: jax.Array, rows: int) -> jax.Array:
        kernel_map = layer.kernel_map(rows, dy.shape[0], views)
        c_in = w.shape[-1] if layer.kind == "depthwise" else layer.groups * w.shape[-2]
        x = jax.ShapeDtypeStruct((rows, c_in), dy.dtype)
        return jax.linear_transpose(lambda x: layer.forward(x, w, kernel_map), x)(dy)[0]

    return jax.jit(dgrad, static_argnames="rows")


@functools.lru_cache(maxsize=4096)
def _wgrad_program(text: str) -> Any:
    layer = read_layer(text)

    def wgrad(x: jax.Array, dy: jax.Array, *views: jax.Array) -> jax.Array:
        kernel_map = layer.kernel_map(x.shape[0], dy.shape[0], views)
        w = jax.ShapeDtypeStruct(layer.weight_shape(x.shape[1], dy.shape[1]), x.dtype)
        return jax.linear_transpose(lambda w: layer.forward(x, w, kernel_map), w)(dy)[0]

    return jax.jit(wgrad)


@torch.library.custom_op(
    "voxax::forward",
    mutates_args=(),
    schema="(Tensor features, Tensor weight, Tensor[] views, str layer) -> Tensor",
)
def forward(
    features: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str
) -> torch.Tensor:
    """``y [M, C_out]`` of ``features [N, C_in]``; ``views``: as the layer's text names them."""
    return call(_forward_program(layer), features, weight, *views)


@torch.library.custom_op(
    "voxax::dgrad",
    mutates_args=(),
    schema="(Tensor grad, Tensor weight, Tensor[] views, str layer, SymInt rows) -> Tensor",
)
def dgrad(
    grad: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str, rows: int
) -> torch.Tensor:
    """``dx [rows, C_in]`` of ``grad [M, C_out]``."""
    return call(_dgrad_program(layer), grad, weight, *views, rows=rows)


@torch.library.custom_op(
    "voxax::wgrad",
    mutates_args=(),
    schema="(Tensor features, Tensor grad, Tensor[] views, str layer) -> Tensor",
)
def wgrad(features: torch.Tensor, grad: torch.Tensor, views: Tensors, layer: str) -> torch.Tensor:
    """``dw``, in the weight's shape."""
    return call(_wgrad_program(layer), features, grad, *views)


@forward.register_fake
def _forward_shape(
    features: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str
) -> torch.Tensor:
    described = read_layer(layer)
    c_out = weight.shape[-1] * (1 if described.kind == "depthwise" else described.groups)
    return features.new_empty((views[0].shape[0], c_out))


@dgrad.register_fake
def _dgrad_shape(
    grad: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str, rows: int
) -> torch.Tensor:
    described = read_layer(layer)
    depthwise = described.kind == "depthwise"
    c_in = weight.shape[-1] if depthwise else described.groups * weight.shape[-2]
    return grad.new_empty((rows, c_in))


@wgrad.register_fake
def _wgrad_shape(
    features: torch.Tensor, grad: torch.Tensor, views: Tensors, layer: str
) -> torch.Tensor:
    shape = read_layer(layer).weight_shape(features.shape[1], grad.shape[1])  # type: ignore[arg-type]
    return features.new_empty(shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, views, layer, *_ = inputs
    ctx.save_for_backward(a, b, *views)
    ctx.layer = layer


def _forward_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, w, *views = ctx.saved_tensors
    wants_x, wants_w, *_ = ctx.needs_input_grad
    dx = dgrad(grad, w, views, ctx.layer, x.shape[0]) if wants_x else None
    dw = wgrad(x, grad, views, ctx.layer) if wants_w else None
    return dx, dw, [None] * len(views), None


def _dgrad_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    dy, w, *views = ctx.saved_tensors
    wants_dy, wants_w, *_ = ctx.needs_input_grad
    d_dy = forward(grad, w, views, ctx.layer) if wants_dy else None
    d_w = wgrad(grad, dy, views, ctx.layer) if wants_w else None
    return d_dy, d_w, [None] * len(views), None, None


def _wgrad_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, dy, *views = ctx.saved_tensors
    wants_x, wants_dy, *_ = ctx.needs_input_grad
    d_x = dgrad(dy, grad, views, ctx.layer, x.shape[0]) if wants_x else None
    d_dy = forward(x, grad, views, ctx.layer) if wants_dy else None
    return d_x, d_dy, [None] * len(views), None


forward.register_autograd(_forward_backward, setup_context=_save)
dgrad.register_autograd(_dgrad_backward, setup_context=_save)
wgrad.register_autograd(_wgrad_backward, setup_context=_save)
