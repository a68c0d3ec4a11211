"""The static side of a layer: what its three products have in common, and their shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from voxax.algorithms import Problem, Product, WeightKind
from voxax.geometry import KernelSpec
from voxax.geometry.dtypes import product_dtype
from voxax.tuning import Resolved


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


def output_shape(
    product: Product, a: Any, b: Any, *views: Any, layer: Layer
) -> jax.ShapeDtypeStruct:
    """Shape and dtype of what a product of these operands (or their shapes) computes."""
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
