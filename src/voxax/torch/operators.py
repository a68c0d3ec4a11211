"""PyTorch operators: kernel maps, and the three products of a layer.

Operators on maps take coordinates and return tables of static shapes. ``voxax::forward``,
``voxax::dgrad`` and ``voxax::wgrad`` are the products of :mod:`voxax.products.primitives`. They
are bilinear and closed under differentiation, so the gradient of each is written with the other
two, and gradients of any order follow.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from voxax.coords import bucket_capacity
from voxax.geometry import PAIR_ROOM, KernelMap, VoxelGeometry, kernel_map_of
from voxax.geometry.build import output_geometry
from voxax.geometry.losses import Losses
from voxax.geometry.voxel_geometry import check_overflow
from voxax.kernels.implicit_gemm import tap_order
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE, columns_of
from voxax.kernels.registry import views
from voxax.nn.functional.pooling import extreme_rows
from voxax.torch.bridge import call, to_jax, to_torch
from voxax.torch.static_text import read_layer, read_spec, stand_in


def _geometry(coords: jax.Array, stride: tuple[int, ...]) -> VoxelGeometry:
    """Return the voxel set of rows in canonical order; maps do not depend on ``batch_size``."""
    count = jnp.sum(coords[:, 0] != jnp.iinfo(jnp.int32).max, dtype=jnp.int32)
    return VoxelGeometry(coords, count, Losses.of({}), None, stride, 1)


@functools.lru_cache(maxsize=4096)
def _neighbors_program(text: str, same: bool) -> Any:
    spec = read_spec(text).relation
    ones = (1,) * spec.ndim
    fine, coarse = (spec.stride, ones) if spec.transposed else (ones, spec.stride)

    def table(source: jax.Array, out: jax.Array) -> jax.Array:
        geometry = _geometry(source, fine)
        target = geometry if same else _geometry(out, coarse)
        return kernel_map_of(geometry, spec, target).neighbors

    return jax.jit(table)


@torch.library.custom_op(
    "voxax::neighbors",
    mutates_args=(),
    schema="(Tensor source, Tensor out, str spec, bool same) -> Tensor",
)
def neighbors(source: torch.Tensor, out: torch.Tensor, spec: str, same: bool) -> torch.Tensor:
    """Return ``int32[out_capacity, K]`` from the coordinates of both sides, equal if ``same``."""
    return call(_neighbors_program(spec, same), source, out)


@neighbors.register_fake
def _neighbors_shape(
    source: torch.Tensor, out: torch.Tensor, spec: str, same: bool
) -> torch.Tensor:
    return out.new_empty((out.shape[0], read_spec(spec).num_offsets))


@functools.lru_cache(maxsize=4096)
def _outputs_program(text: str) -> Any:
    spec = read_spec(text)
    stride = spec.stride if spec.transposed else (1,) * spec.ndim

    def outputs(coords: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        out = output_geometry(_geometry(coords, stride), spec, capacity)
        return out.coords, out.count, out.num_dropped

    return jax.jit(outputs, static_argnames="capacity")


@torch.library.custom_op(
    "voxax::output_coords",
    mutates_args=(),
    schema="(Tensor coords, str spec, SymInt capacity) -> Tensor",
)
def output_coords(coords: torch.Tensor, spec: str, capacity: int) -> torch.Tensor:
    """Return ``int32[capacity, 1 + D]``: the voxels that a strided or generative spec leads to.

    Raises:
      CapacityError: there are more, also inside a compiled program.
    """
    out, count, dropped = _outputs_program(spec)(to_jax(coords), capacity=capacity)
    check_overflow(count, dropped, read_spec(spec).stride)
    return to_torch(out)


@output_coords.register_fake
def _output_coords_shape(coords: torch.Tensor, spec: str, capacity: int) -> torch.Tensor:
    return coords.new_empty((capacity, coords.shape[1]))


def output_bucket(coords: torch.Tensor, spec: str) -> int:
    """Return the bucketed number of output voxels, which depends on data: not in compiled code."""
    rows = coords.shape[0] * (read_spec(spec).num_offsets if read_spec(spec).generative else 1)
    _, count, _ = _outputs_program(spec)(to_jax(coords), capacity=rows)
    return bucket_capacity(int(count))


@functools.lru_cache(maxsize=4096)
def _view_program(text: str, name: str, same: bool) -> Any:
    spec = read_spec(text)
    ones = (1,) * spec.ndim

    def view(table: jax.Array, in_rows: int) -> jax.Array:
        source = stand_in(in_rows, ones)
        out = source if same else stand_in(table.shape[0], ones)
        return KernelMap(source, out, spec, {"neighbors": table}, check=False).view(
            name, views().get(name)
        )

    return jax.jit(view, static_argnames="in_rows")


@torch.library.custom_op(
    "voxax::map_view",
    mutates_args=(),
    schema="(Tensor neighbors, str name, str spec, bool same, SymInt in_rows) -> Tensor",
)
def map_view(
    neighbors: torch.Tensor, name: str, spec: str, same: bool, in_rows: int
) -> torch.Tensor:
    """Return an array that is derived from the table; see :meth:`voxax.geometry.KernelMap.view`."""
    return call(_view_program(spec, name, same), neighbors, in_rows=in_rows)


@map_view.register_fake
def _map_view_shape(
    neighbors: torch.Tensor, name: str, spec: str, same: bool, in_rows: int
) -> torch.Tensor:
    rows, taps = neighbors.shape
    if name == "transposed_neighbors":
        return neighbors.new_empty((in_rows, taps))
    if name == "pairs":
        return neighbors.new_empty((2, rows * taps + PAIR_ROOM))
    if name == "pair_starts":
        return neighbors.new_empty((taps + 1,))
    if name in tap_order.VIEWS:
        return neighbors.new_empty((taps + 1, rows if name == "sorted_neighbors" else in_rows))
    side = rows if name == "windows" else in_rows
    # The spec's own number of taps: that of the table may be a symbol.
    columns = len(columns_of(read_spec(spec), read_spec(spec).num_offsets))
    return neighbors.new_empty((2, (side + WINDOW_TILE - 1) // WINDOW_TILE, columns))


@torch.library.custom_op(
    "voxax::extreme_rows",
    mutates_args=(),
    schema="(Tensor features, Tensor neighbors, bool largest) -> Tensor",
)
def window_extremes(features: torch.Tensor, neighbors: torch.Tensor, largest: bool) -> torch.Tensor:
    """Return ``int32[M, C]``: the input row of each window's largest or smallest value, or -1."""
    return call(extreme_rows, features, neighbors, largest=largest)


@window_extremes.register_fake
def _window_extremes_shape(
    features: torch.Tensor, neighbors: torch.Tensor, largest: bool
) -> torch.Tensor:
    return neighbors.new_empty((neighbors.shape[0], features.shape[1]))


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
        x = jax.ShapeDtypeStruct((rows, layer.channels(w)[0]), dy.dtype)
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
    """Return ``y [M, C_out]`` of ``features [N, C_in]``; the layer's text names ``views``."""
    return call(_forward_program(layer), features, weight, *views)


@torch.library.custom_op(
    "voxax::dgrad",
    mutates_args=(),
    schema="(Tensor grad, Tensor weight, Tensor[] views, str layer, SymInt rows) -> Tensor",
)
def dgrad(
    grad: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str, rows: int
) -> torch.Tensor:
    """Return ``dx [rows, C_in]`` of ``grad [M, C_out]``."""
    return call(_dgrad_program(layer), grad, weight, *views, rows=rows)


@torch.library.custom_op(
    "voxax::wgrad",
    mutates_args=(),
    schema="(Tensor features, Tensor grad, Tensor[] views, str layer) -> Tensor",
)
def wgrad(features: torch.Tensor, grad: torch.Tensor, views: Tensors, layer: str) -> torch.Tensor:
    """Return ``dw``, in the weight's shape."""
    return call(_wgrad_program(layer), features, grad, *views)


@forward.register_fake
def _forward_shape(
    features: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str
) -> torch.Tensor:
    return features.new_empty((views[0].shape[0], read_layer(layer).channels(weight)[1]))


@dgrad.register_fake
def _dgrad_shape(
    grad: torch.Tensor, weight: torch.Tensor, views: Tensors, layer: str, rows: int
) -> torch.Tensor:
    return grad.new_empty((rows, read_layer(layer).channels(weight)[0]))


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
    dx = apply(dgrad, grad, w, views, ctx.layer, x.shape[0]) if wants_x else None
    dw = apply(wgrad, x, grad, views, ctx.layer) if wants_w else None
    return dx, dw, [None] * len(views), None


def _dgrad_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    dy, w, *views = ctx.saved_tensors
    wants_dy, wants_w, *_ = ctx.needs_input_grad
    d_dy = apply(forward, grad, w, views, ctx.layer) if wants_dy else None
    d_w = apply(wgrad, grad, dy, views, ctx.layer) if wants_w else None
    return d_dy, d_w, [None] * len(views), None, None


def _wgrad_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, dy, *views = ctx.saved_tensors
    wants_x, wants_dy, *_ = ctx.needs_input_grad
    d_x = apply(dgrad, dy, grad, views, ctx.layer, x.shape[0]) if wants_x else None
    d_dy = apply(forward, x, grad, views, ctx.layer) if wants_dy else None
    return d_x, d_dy, [None] * len(views), None


_BACKWARD = {forward: _forward_backward, dgrad: _dgrad_backward, wgrad: _wgrad_backward}
for _operator, _rule in _BACKWARD.items():
    _operator.register_autograd(_rule, setup_context=_save)


class _Transformed(torch.autograd.Function):
    """A product under ``torch.func.grad`` and ``vjp``, which take no gradients of operators."""

    @staticmethod
    def forward(operator: Any, layer: str, rows: tuple[int, ...], *tensors: Any) -> torch.Tensor:
        a, b, *views = tensors
        return operator(a, b, views, layer, *rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.operator, ctx.layer, _, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        of = _Context(ctx.saved_tensors, ctx.layer, ctx.needs_input_grad[3:])
        d_a, d_b, of_views, *_ = _BACKWARD[ctx.operator](of, *grads)
        return None, None, None, d_a, d_b, *of_views


class _Context(NamedTuple):
    """What a rule of gradients reads."""

    saved_tensors: tuple[torch.Tensor, ...]
    layer: str
    needs_input_grad: tuple[bool, ...]


def apply(
    operator: Any, a: torch.Tensor, b: torch.Tensor, views: Tensors, layer: str, *rows: int
) -> torch.Tensor:
    """Return the result of a product: ``operator(a, b, views, layer, *rows)``."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return operator(a, b, views, layer, *rows)
    return _Transformed.apply(operator, layer, rows, a, b, *views)
