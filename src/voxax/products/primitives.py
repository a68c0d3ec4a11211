"""The one differentiation rule of the library, over three bilinear products.

::

    forward  y  = A w        x  [N, C_in],  w            ->  y  [M, C_out]
    dgrad    dx = dy w^T     dy [M, C_out], w            ->  dx [N, C_in]
    wgrad    dw = A^T dy     x  [N, C_in],  dy [M, C_out] ->  dw

Each is bilinear, so its JVP is itself; and the three are closed under transposition:
the transposes of each are the other two over the same map. Hence gradients of any order,
forward and reverse, for every algorithm, none of which defines a derivative. The
algorithm is chosen below this level, when a product is lowered for a platform.

``vmap`` over features or weights folds the batch into groups of one grouped product.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.algorithms import Problem, Product, WeightKind
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import product_dtype
from voxax.tuning import Resolved, choose


@dataclasses.dataclass(frozen=True)
class Layer:
    """The static side of one layer's three products.

    Attributes:
      in_capacity, out_capacity: rows of the map's two sides.
      num_offsets: K.
      symmetric: see :class:`voxax.algorithms.Problem`.
      view_names: which arrays follow the two operands, in order.
      kind: weight kind; groups: G (1 if dense).
      precision: name of a ``jax.lax.Precision``.
      requests: admitted algorithms by product. All three are fixed when the forward
        product is traced: its backward may be traced later, in another context.
      spec, level, density, grid, tile_density, prefix: see :class:`voxax.algorithms.Problem`.
    """

    in_capacity: int
    out_capacity: int
    num_offsets: int
    symmetric: bool
    view_names: tuple[str, ...]
    kind: WeightKind
    groups: int
    precision: str
    requests: tuple[tuple[Product, Resolved], ...]
    spec: KernelSpec | None = None
    level: tuple[int, ...] = ()
    density: float | None = None
    grid: tuple[int, ...] = ()
    tile_density: float | None = None
    prefix: tuple[int, ...] = ()

    def channels(self, weight_shape: tuple[int, ...]) -> tuple[int, int]:
        """``(C_in, C_out)`` of a layer with such a weight."""
        if self.kind == "depthwise":
            return weight_shape[-1], weight_shape[-1]
        return self.groups * weight_shape[-2], self.groups * weight_shape[-1]


def _channels(product: Product, layer: Layer, a: Any, b: Any) -> tuple[int, int]:
    """``(C_in, C_out)`` of the forward relation from the operands' shapes."""
    if product == "wgrad":
        return a.shape[-1], b.shape[-1]
    return layer.channels(b.shape)


def problem_of(product: Product, platform: str, a: Any, b: Any, layer: Layer) -> Problem:
    """The problem that a product of ``layer`` with these operands (or their shapes) poses."""
    c_in, c_out = _channels(product, layer, a, b)
    return Problem(
        product,
        layer.kind,
        layer.in_capacity,
        layer.out_capacity,
        layer.num_offsets,
        c_in,
        c_out,
        layer.groups,
        jnp.dtype(a.dtype).name,
        layer.precision,
        layer.symmetric,
        platform,
        layer.spec,
        layer.level,
        layer.density,
        layer.grid,
        layer.tile_density,
        layer.prefix,
    )


def _run(product: Product, platform: str, a: Any, b: Any, *views: Any, layer: Layer) -> Any:
    problem = problem_of(product, platform, a, b, layer)
    choice = choose(problem, dict(layer.requests)[product], layer.view_names)
    by_name = dict(zip(layer.view_names, views, strict=True))
    return choice.implementation.apply(problem, choice.parameters, a, b, by_name)


def _output_shape(
    product: Product, a: Any, b: Any, *views: Any, layer: Layer
) -> jax.ShapeDtypeStruct:
    c_in, c_out = _channels(product, layer, a, b)
    if product == "forward":
        shape: tuple[int, ...] = (layer.out_capacity, c_out)
    elif product == "dgrad":
        shape = (layer.in_capacity, c_in)
    elif layer.kind == "depthwise":
        shape = (layer.num_offsets, c_in)
    elif layer.kind == "grouped":
        g = layer.groups
        shape = (layer.num_offsets, g, c_in // g, c_out // g)
    else:
        shape = (layer.num_offsets, c_in, c_out)
    return jax.ShapeDtypeStruct(shape, product_dtype(a.dtype))


def _transpose_forward(ct: Any, x: Any, w: Any, *views: Any, layer: Layer) -> list:
    if _compat.is_undefined_primal(x):
        return _cotangents(ct, dgrad_p, (ct, w), 0, views, layer)
    return _cotangents(ct, wgrad_p, (x, ct), 1, views, layer)


def _transpose_dgrad(ct: Any, dy: Any, w: Any, *views: Any, layer: Layer) -> list:
    if _compat.is_undefined_primal(dy):
        return _cotangents(ct, forward_p, (ct, w), 0, views, layer)
    return _cotangents(ct, wgrad_p, (ct, dy), 1, views, layer)


def _transpose_wgrad(ct: Any, x: Any, dy: Any, *views: Any, layer: Layer) -> list:
    if _compat.is_undefined_primal(x):
        return _cotangents(ct, dgrad_p, (dy, ct), 0, views, layer)
    return _cotangents(ct, forward_p, (x, ct), 1, views, layer)


def _cotangents(
    ct: Any, primitive: Any, operands: tuple, slot: int, views: tuple, layer: Layer
) -> list:
    result: list = [None] * (2 + len(views))
    if not isinstance(ct, _compat.Zero):
        result[slot] = primitive.bind(*operands, *views, layer=layer)
    return result


def _batch(product: Product, args: Any, dims: Any, *, layer: Layer) -> tuple[Any, int]:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    a, b, *views = args
    # Dynamic products branch on their sizes: one after the other, a batch runs one branch each.
    if layer.kind == "dynamic" or any(d is not None for d in dims[2:]):
        return _batch_maps(product, args, dims, layer), 0

    def spread(operand: Any, dim: int | None) -> Any:
        """Batch axis in place 1: ``[rows or K, B, ...]``."""
        if dim is None:
            shape = (operand.shape[0], size, *operand.shape[1:])
            return jnp.broadcast_to(operand[:, None], shape)
        return jnp.moveaxis(operand, dim, 1)

    def rows(operand: Any) -> Any:
        return operand.reshape(operand.shape[0], -1)

    def weight(operand: Any) -> Any:
        if layer.kind == "depthwise":
            return operand.reshape(operand.shape[0], -1)
        return operand.reshape(operand.shape[0], -1, *operand.shape[-2:])

    a, b = rows(spread(a, dims[0])), spread(b, dims[1])
    b = rows(b) if product == "wgrad" else weight(b)
    grouped = layer
    if layer.kind != "depthwise":
        grouped = dataclasses.replace(layer, kind="grouped", groups=layer.groups * size)
    out = _PRIMITIVES[product].bind(a, b, *views, layer=grouped)
    if product != "wgrad":
        return out.reshape(out.shape[0], size, -1), 1
    if layer.kind == "depthwise":
        return out.reshape(out.shape[0], size, -1), 1
    inner = (layer.groups,) if layer.kind == "grouped" else ()
    return out.reshape(out.shape[0], size, *inner, *out.shape[-2:]), 1


def _batch_maps(product: Product, args: Any, dims: Any, layer: Layer) -> Any:
    """Every batch entry has its own map: one after the other."""
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    batched = [m for m, d in zip(moved, dims, strict=True) if d is not None]

    def one(entries: Any) -> Any:
        queue = iter(entries)
        operands = [m if d is None else next(queue) for m, d in zip(moved, dims, strict=True)]
        return _PRIMITIVES[product].bind(*operands, layer=layer)

    return jax.lax.map(one, batched)


def _primitive(product: Product, transpose: Any) -> Any:
    return _compat.bilinear_primitive(
        f"voxax_{product}",
        functools.partial(_run, product),
        functools.partial(_output_shape, product),
        transpose,
        functools.partial(_batch, product),
    )


forward_p = _primitive("forward", _transpose_forward)
dgrad_p = _primitive("dgrad", _transpose_dgrad)
wgrad_p = _primitive("wgrad", _transpose_wgrad)
_PRIMITIVES: dict[Product, Any] = {"forward": forward_p, "dgrad": dgrad_p, "wgrad": wgrad_p}
