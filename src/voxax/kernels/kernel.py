"""The record that describes a kernel, and the problems that kernels solve.

A *kernel* is one algorithm on one platform. An *algorithm* is the set of kernels with one name,
which users request, such as ``implicit_gemm``. A :class:`Problem` is one product of one
:class:`Layer`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry import KernelSpec
from voxax.geometry.kernel_maps import View
from voxax.hardware import HardwareInfo

Product = Literal["forward", "dgrad", "wgrad"]
"""``forward``: Y = A W over the map. ``dgrad``: dX = dY W^T over the transposed map.
``wgrad``: dW = A^T dY."""

Uniform = Literal["", "scenes", "all"]
"""What is known about a dynamic layer's sizes: ``""`` nothing, ``"scenes"`` that each scene has one
size, ``"all"`` that every position has all taps."""

EVERY_PRODUCT = frozenset[Product]({"forward", "dgrad", "wgrad"})

WeightKind = Literal["dense", "grouped", "depthwise", "dynamic"]
"""The kind of a weight, of shape ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]`` or ``[K, C]``.
``dynamic`` is a dense weight over a regular grid, where each output position uses the taps that its
size reaches."""

Parameters = tuple[tuple[str, int | str], ...]
"""A kernel's parameters, sorted by name and hashable: ``(("fwd_block_size", 16),)``."""


@dataclasses.dataclass(frozen=True)
class GridSizes:
    """The grid of a dynamic layer, and what is known about the sizes of its positions.

    Attributes:
      grid: the shape ``[B, *spatial]`` of the input, whose positions are the layer's input rows.
      tile_density: the layer's ``density`` if every position had the largest size of its tile. The
        two are close if sizes are smooth.
      uniform: see :data:`Uniform`. ``scenes`` may be a guess from concrete sizes, so kernels must
        be right for all sizes; ``all`` is certain.
      prefix: the number of positions of at least each size (from 0), rounded up; only for programs
        that are compiled for one histogram of sizes.
    """

    grid: tuple[int, ...] = ()
    tile_density: float | None = None
    uniform: Uniform = ""
    prefix: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Layer:
    """Static description of one layer's three products.

    Attributes:
      in_capacity, out_capacity: rows of the map's two sides.
      num_offsets: K, the number of taps.
      symmetric: whether the map is its own adjoint with taps reversed (submanifold, centered box).
      kind: the kind of the weight.
      groups: G; 1 if dense or depthwise.
      precision: ``jax.lax.Precision`` name, part of every tuning key.
      spec: the map's relation, or None where it is unknown.
      level: total stride of the map's input voxels.
      density: the average number of pairs of an output row, rounded to a power of sqrt(2); None
        where the map is traced.
      sizes: the grid and sizes of a dynamic layer; empty for other kinds.
      requests: admitted algorithms by product. All three are fixed when the forward product is
        traced, since the backward products may be traced later, in another context.
      stated: the products for which the user stated a request, including ``"auto"``.
      view_names: names of the map's arrays that follow the two operands of each product, in order.
    """

    in_capacity: int
    out_capacity: int
    num_offsets: int
    symmetric: bool
    kind: WeightKind
    groups: int
    precision: str
    spec: KernelSpec | None = None
    level: tuple[int, ...] = ()
    density: float | None = None
    sizes: GridSizes = GridSizes()
    requests: tuple[tuple[Product, tuple[str, ...]], ...] = ()
    stated: tuple[Product, ...] = ()
    view_names: tuple[str, ...] = ()

    @functools.cached_property
    def of_problems(self) -> Layer:
        """The layer without its requests and view names.

        They decide which kernels are considered, but not what a kernel answers.
        """
        return dataclasses.replace(self, requests=(), stated=(), view_names=())

    def channels(self, weight_shape: tuple[int, ...]) -> tuple[int, int]:
        """Return ``(C_in, C_out)`` of this layer with a weight of shape ``weight_shape``."""
        if self.kind == "depthwise":
            return weight_shape[-1], weight_shape[-1]
        return self.groups * weight_shape[-2], self.groups * weight_shape[-1]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Static description of a product: everything that a kernel's answer depends on.

    Attributes:
      product: one of the three products.
      layer: the layer, as :attr:`Layer.of_problems` returns it.
      in_channels, out_channels: channels of the forward product; both are C if depthwise.
      dtype: name of the operands' dtype.
      platform: ``cpu``, ``gpu``, ``tpu``, or ``any`` for a platform unknown to voxax.
    """

    product: Product
    layer: Layer
    in_channels: int
    out_channels: int
    dtype: str
    platform: str

    @classmethod
    def of(cls, product: Product, platform: str, a: Any, b: Any, layer: Layer) -> Problem:
        """Return the problem of a product of ``layer`` with these operands, or their shapes."""
        wgrad = product == "wgrad"
        c_in, c_out = (a.shape[-1], b.shape[-1]) if wgrad else layer.channels(b.shape)
        return cls(
            product=product,
            layer=layer.of_problems,
            in_channels=c_in,
            out_channels=c_out,
            dtype=jnp.dtype(a.dtype).name,
            platform=platform,
        )

    def with_layer(self, **changes: Any) -> Problem:
        """Return this product for a layer with other values of the fields in ``changes``."""
        return dataclasses.replace(self, layer=dataclasses.replace(self.layer, **changes))

    def with_sizes(self, **changes: Any) -> Problem:
        """Return this product for a dynamic layer with other fields of :class:`GridSizes`."""
        return self.with_layer(sizes=dataclasses.replace(self.layer.sizes, **changes))

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the layer's weight, see :data:`WeightKind`."""
        taps, c_in, c_out = self.layer.num_offsets, self.in_channels, self.out_channels
        if self.layer.kind == "depthwise":
            return (taps, c_in)
        if self.layer.kind == "grouped":
            groups = self.layer.groups
            return (taps, groups, c_in // groups, c_out // groups)
        return (taps, c_in, c_out)

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the two operands, see :class:`Apply`."""
        x = self.layer.in_capacity, self.in_channels
        dy = self.layer.out_capacity, self.out_channels
        weight = self.weight_shape
        return {"forward": (x, weight), "dgrad": (dy, weight), "wgrad": (x, dy)}[self.product]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the product's result."""
        if self.product == "wgrad":
            return self.weight_shape
        return self.out_rows, self.other_channels

    @property
    def out_rows(self) -> int:
        """Number of rows of the side that this product writes, or that wgrad sums over."""
        dgrad = self.product == "dgrad"
        return self.layer.in_capacity if dgrad else self.layer.out_capacity

    @property
    def gathered_rows(self) -> int:
        """Number of rows of the first operand, from which rows are gathered."""
        dgrad = self.product == "dgrad"
        return self.layer.out_capacity if dgrad else self.layer.in_capacity

    @property
    def gathered_channels(self) -> int:
        """Number of channels of the first operand."""
        return self.out_channels if self.product == "dgrad" else self.in_channels

    @property
    def other_channels(self) -> int:
        """Number of channels of the side that is not the first operand's."""
        return self.in_channels if self.product == "dgrad" else self.out_channels


Views = dict[str, jax.Array]
"""The map's arrays by name."""


class Apply(Protocol):
    """A function that computes a product.

    The operands ``a, b`` are ``x [N, C_in], w`` for forward, ``dy [M, C_out], w`` for dgrad and
    ``x, dy`` for wgrad. ``views`` are the map's arrays by name. It returns y, dx or dw in the dtype
    of ``a``, or int32 for 8- and 16-bit integers, accumulated in float32 or wider.
    """

    def __call__(
        self,
        problem: Problem,
        parameters: Parameters,
        a: jax.Array,
        b: jax.Array,
        views: Views,
    ) -> jax.Array: ...


class ApplyOnHost(Protocol):
    """A function that computes a product of NumPy arrays with the same bits as :class:`Apply`.

    It may return None if it does not take the arrays.
    """

    def __call__(
        self,
        problem: Problem,
        parameters: Parameters,
        a: np.ndarray,
        b: np.ndarray,
        views: Mapping[str, np.ndarray],
    ) -> np.ndarray | None: ...


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """The operations after a forward product in inference, on each row and channel of its result y.

    They are ``(y + bias - mean) / sqrt(variance + epsilon) * scale + shift + residual``.

    Attributes:
      valid: ``bool[M]``; other rows become zero, even if they or the residual hold NaN.
      mean, variance, scale, shift: ``[C_out]``; their dtypes may differ.
      bias: ``[C_out]``, or None.
      residual: ``[M, C_out]``, or None.
      epsilon: a number that is added to the variance.
      relu: whether negative results become zero.
    """

    valid: jax.Array
    mean: jax.Array
    variance: jax.Array
    scale: jax.Array
    shift: jax.Array
    bias: jax.Array | None
    residual: jax.Array | None
    epsilon: float
    relu: bool


jax.tree_util.register_dataclass(
    Epilogue,
    data_fields=["valid", "mean", "variance", "scale", "shift", "bias", "residual"],
    meta_fields=["epsilon", "relu"],
)


class WithEpilogue(Protocol):
    """A function that computes a forward product with epilogue, rounded once, or returns None."""

    def __call__(
        self,
        problem: Problem,
        parameters: Parameters,
        a: jax.Array,
        b: jax.Array,
        views: Views,
        epilogue: Epilogue,
    ) -> jax.Array | None: ...


class ApplyFused(Protocol):
    """A function that computes dgrad and wgrad of one layer at once and returns ``(dx, dw)``.

    ``problem`` is the problem of dgrad; ``views`` are all views that the two products read.
    """

    def __call__(
        self,
        problem: Problem,
        parameters: Parameters,
        dy: jax.Array,
        x: jax.Array,
        w: jax.Array,
        views: Views,
    ) -> tuple[jax.Array, jax.Array]: ...


@dataclasses.dataclass(frozen=True)
class Fused:
    """The program of a kernel that computes dgrad and wgrad at once, if it is chosen for both.

    Attributes:
      heuristic: a function of ``(problem, hardware, parameters)`` of dgrad that returns the
        parameters of the program, or None to compute the products one after the other. The
        parameters that were chosen for wgrad are not used.
      apply: the computation, in traceable JAX.
      on_host: the computation for NumPy arrays, with the same bits; None if there is none.
    """

    heuristic: Callable[[Problem, HardwareInfo, Parameters], Parameters | None]
    apply: ApplyFused
    on_host: Callable[..., tuple[np.ndarray, np.ndarray]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One algorithm on one platform.

    The registry finds every record in the modules of :mod:`voxax.kernels`.

    Attributes:
      name: the algorithm's name, as in requests: ``"explicit_gemm"``.
      kind: the kind of weights that it multiplies; kernels of dense weights are considered for
        grouped weights too.
      products: the products that it computes.
      platform: the platform that it runs on, or ``any``.
      supports: a function of ``(problem, hardware)`` that returns None if it can run, else the
        reason why not.
      space: a function of ``(problem, hardware)`` that returns the parameters worth measuring, at
        least one where it can run.
      heuristic: a function of ``(problem, hardware)`` that returns the parameters to use if nothing
        was measured, one of ``space``.
      reads: a function of ``(parameters, product, symmetric)`` that returns the names of the map's
        arrays that it reads.
      apply: the computation, in traceable JAX.
      views: by name, the arrays in ``reads`` that code beside the kernel builds. The others are the
        map's own, see :class:`voxax.geometry.KernelMap`.
      on_host: the computation for NumPy arrays, for eager calls on a CPU; None if there is none.
      with_epilogue: the forward product with an :class:`Epilogue`; None if there is none.
      fused: the program for dgrad and wgrad at once; None if there is none.
      preferred: a function of ``(problem, hardware)`` that returns whether, without a measurement,
        it comes before algorithms that are earlier in the registry or the request.
      decisive: a function of ``(problem, hardware)`` that returns whether it is known to be the
        fastest by a wide margin. If so and nothing is requested, it is chosen without measuring.
      unproven: whether it has not run on any device yet. Where its result cannot be checked, other
        algorithms come before it.
      alone: whether other kernels of its name are no candidates where it can run.
      revision: a number that is raised whenever earlier measurements no longer hold.
      rank: its place in the order of preference, see :mod:`voxax.kernels.registry`.
    """

    name: str
    kind: WeightKind
    products: frozenset[Product]
    platform: str
    supports: Callable[[Problem, HardwareInfo], str | None]
    space: Callable[[Problem, HardwareInfo], tuple[Parameters, ...]]
    heuristic: Callable[[Problem, HardwareInfo], Parameters]
    reads: Callable[[Parameters, Product, bool], tuple[str, ...]]
    apply: Apply
    views: Mapping[str, View] = dataclasses.field(default_factory=dict)
    on_host: ApplyOnHost | None = None
    with_epilogue: WithEpilogue | None = None
    fused: Fused | None = None
    preferred: Callable[[Problem, HardwareInfo], bool] = lambda problem, hardware: False
    decisive: Callable[[Problem, HardwareInfo], bool] = lambda problem, hardware: False
    unproven: bool = False
    alone: bool = False
    revision: int = 1
    rank: int = 1000

    def refusal(self, problem: Problem, hardware: HardwareInfo) -> str | None:
        """Return the reason why this kernel cannot run this problem, or None."""
        if problem.product not in self.products:
            return f"does not compute {problem.product}"
        reason = self.supports(problem, hardware)
        if reason is None and self.platform not in ("any", problem.platform):
            return f"does not run on {problem.platform}"
        return reason

    def views_of(self, problem: Problem, parameters: Parameters) -> dict[str, View | None]:
        """Return the builder of each array that this product reads, by name.

        It is None for the map's own arrays.
        """
        names = self.reads(parameters, problem.product, problem.layer.symmetric)
        return {name: self.views.get(name) for name in names}


def first_of(
    space: Callable[[Problem, HardwareInfo], tuple[Parameters, ...]],
) -> Callable[[Problem, HardwareInfo], Parameters]:
    """Return the heuristic that takes the first parameters of ``space``."""
    return lambda problem, hardware: space(problem, hardware)[0]
