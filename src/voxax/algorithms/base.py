"""The record that every algorithm fills in, and the vocabulary of problems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

import jax

from voxax.geometry import KernelSpec
from voxax.hardware import HardwareInfo

Product = Literal["forward", "dgrad", "wgrad"]
"""``forward``: Y = A W over the map. ``dgrad``: dX = dY W^T over the transposed map.
``wgrad``: dW = A^T dY."""

WeightKind = Literal["dense", "grouped", "depthwise", "dynamic"]
"""Weight shapes ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]``, ``[K, C]``. ``dynamic``: dense
weights over a regular grid, of whose taps each output position uses those that its size reaches."""

Parameters = tuple[tuple[str, int | str], ...]
"""An algorithm's parameters, sorted by name; hashable: ``(("fwd_block_size", 16),)``."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a product is, statically: everything an algorithm may base its answer on.

    Attributes:
      product: which of the three products.
      kind: weight kind.
      in_capacity, out_capacity: rows of the two sides of the *forward* relation.
      num_offsets: K.
      in_channels, out_channels: channels of the forward relation; both C if depthwise.
      groups: G; 1 if dense or depthwise.
      dtype: operand dtype name.
      precision: ``jax.lax.Precision`` name, part of every tuning key.
      symmetric: the map is its own adjoint with taps reversed (submanifold, centred box).
      platform: ``cpu``, ``gpu``, ``tpu``, or ``any`` for a platform unknown to voxax.
      spec: the map's relation, or None where nobody said.
      level: total stride of the map's input voxels.
      density: pairs of the map for each of its output rows, rounded to a power of sqrt(2);
        None where the map is traced.
      grid: of a dynamic problem the shape ``[B, *spatial]`` whose positions its input rows are.
      tile_density: of a dynamic problem the same as ``density`` if every position had the largest
        size of its neighbourhood: how smooth the sizes are.
      prefix: of a dynamic problem, how many positions have at least each size (from 0), rounded
        up; known only to programs that are compiled for one histogram of sizes.
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
    spec: KernelSpec | None = None
    level: tuple[int, ...] = ()
    density: float | None = None
    grid: tuple[int, ...] = ()
    tile_density: float | None = None
    prefix: tuple[int, ...] = ()

    @property
    def weight_shape(self) -> tuple[int, ...]:
        taps, c_in, c_out = self.num_offsets, self.in_channels, self.out_channels
        if self.kind == "depthwise":
            return (taps, c_in)
        if self.kind == "grouped":
            return (taps, self.groups, c_in // self.groups, c_out // self.groups)
        return (taps, c_in, c_out)

    @property
    def out_rows(self) -> int:
        """Rows of the side that this product writes (wgrad: that it sums over)."""
        return self.in_capacity if self.product == "dgrad" else self.out_capacity


class Apply(Protocol):
    """Executes a product.

    Operands ``a, b`` by product: forward ``x [N, C_in], w``; dgrad ``dy [M, C_out], w``;
    wgrad ``x, dy``. ``views`` are the map's arrays by name. Returns y, dx or dw in the
    dtype of ``a``, accumulated in float32 or wider; int32 for 8- and 16-bit integers.
    """

    def __call__(
        self,
        problem: Problem,
        parameters: Parameters,
        a: jax.Array,
        b: jax.Array,
        views: dict[str, jax.Array],
    ) -> jax.Array: ...


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One way to execute products over a kernel map.

    Attributes:
      name: the name users pin, e.g. ``"explicit_gemm"``.
      kinds: weight kinds it is an algorithm for.
      products: what it can compute.
      platforms: where it can run; ``any`` is everywhere.
      revision: raised whenever what was measured before no longer holds.
      supports: ``(problem, hardware) -> None`` if it can run, else the reason why not.
      space: ``(problem, hardware)`` to the parameters worth measuring, at least one.
      heuristic: ``(problem, hardware)`` to the parameters to take unmeasured, one of those.
      views: ``(parameters, product, symmetric)`` to the names of the map's arrays it reads.
      forms: one set of parameters for each set of views; the first runs on any platform.
      apply: the computation, in traceable JAX.
      preferred: ``(problem, hardware)`` to whether it is taken unmeasured before algorithms that
        come earlier in the registry or the request.
    """

    name: str
    kinds: frozenset[WeightKind]
    products: frozenset[Product]
    platforms: frozenset[str]
    revision: int
    supports: Callable[[Problem, HardwareInfo], str | None]
    space: Callable[[Problem, HardwareInfo], tuple[Parameters, ...]]
    heuristic: Callable[[Problem, HardwareInfo], Parameters]
    views: Callable[[Parameters, Product, bool], tuple[str, ...]]
    forms: tuple[Parameters, ...]
    apply: Apply
    preferred: Callable[[Problem, HardwareInfo], bool] = lambda problem, hardware: False
