"""The record that every algorithm fills in, and the vocabulary of problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import jax

if TYPE_CHECKING:
    from voxax.geometry import KernelMap

Product = Literal["forward", "dgrad", "wgrad"]
"""``forward``: Y = A W over the map. ``dgrad``: dX = dY W^T over the transposed map.
``wgrad``: dW = A^T dY."""

WeightKind = Literal["dense", "grouped", "depthwise"]
"""Weight shapes ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]``, ``[K, C]``."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a product is, statically: everything an algorithm may base its answer on.

    Attributes:
      product: which of the three products.
      kind: weight kind.
      in_capacity, out_capacity: rows of the two sides of the *forward* relation.
      num_offsets: K.
      in_channels, out_channels: channels of the forward relation; both C if depthwise.
      groups: G; 1 if dense, C if depthwise.
      dtype: operand dtype name.
      precision: ``jax.lax.Precision`` name, part of every tuning key.
      symmetric: the map is its own adjoint with taps reversed (submanifold, centred box).
      platform: ``cpu``, ``gpu``, ``tpu``, or ``any`` for a platform unknown to voxax.
    """

    product: Product
    kind: WeightKind
    in_capacity: int
    out_capacity: int
    num_offsets: int
    in_channels: int
    out_channels: int
    groups: int
    dtype: str
    precision: str
    symmetric: bool
    platform: str


class Apply(Protocol):
    """Executes a product.

    Operands ``a, b`` by product: forward ``x [N, C_in], w``; dgrad ``dy [M, C_out], w``;
    wgrad ``x, dy``. ``views`` are the map's arrays by name. Returns y, dx or dw in the
    dtype of ``a``, accumulated in float32 or wider.
    """

    def __call__(
        self, problem: Problem, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]
    ) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to execute products over a kernel map.

    Attributes:
      name: the name users pin, e.g. ``"explicit_gemm"``.
      products: what it can compute.
      platforms: where it can run; ``any`` is everywhere.
      supports: ``problem -> None`` if it can run, else the reason why not.
      prepare: ``kernel_map -> names`` of the views it wants; built once, ahead of the call.
      apply: the computation, in traceable JAX.
    """

    name: str
    products: frozenset[Product]
    platforms: frozenset[str]
    supports: Callable[[Problem], str | None]
    prepare: Callable[[KernelMap], tuple[str, ...]]
    apply: Apply
