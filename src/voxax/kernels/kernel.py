"""The record that every kernel fills in, and the problems that kernels are asked about.

A *kernel* is one algorithm on one platform. An *algorithm* is what users name, ``implicit_gemm``
say: the kernels of this name. A :class:`Problem` is one product of one :class:`Layer`.
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
"""What is known of a dynamic layer's sizes: nothing, that each scene has one size, or that every
position has all taps."""

EVERY_PRODUCT = frozenset[Product]({"forward", "dgrad", "wgrad"})

WeightKind = Literal["dense", "grouped", "depthwise", "dynamic"]
"""Weight shapes ``[K, C_in, C_out]``, ``[K, G, C_in/G, C_out/G]``, ``[K, C]``. ``dynamic``: dense
weights over a regular grid, of whose taps each output position uses those that its size reaches."""

Parameters = tuple[tuple[str, int | str], ...]
"""A kernel's parameters, sorted by name; hashable: ``(("fwd_block_size", 16),)``."""


@dataclasses.dataclass(frozen=True)
class GridSizes:
    """What only a dynamic layer has: its grid, and what is known of the sizes of positions.

    Attributes:
      grid: the shape ``[B, *spatial]`` whose positions the layer's input rows are.
      tile_density: the same as the layer's ``density`` if every position had the largest size of
        its neighborhood: how smooth the sizes are.
      uniform: see :data:`Uniform`. ``scenes`` may be a guess from concrete sizes: kernels are right
        for any; ``all`` is certain.
      prefix: how many positions have at least each size (from 0), rounded up; known only to
        programs that are compiled for one histogram of sizes.
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
      num_offsets: K.
      symmetric: the map is its own adjoint with taps reversed (submanifold, centered box).
      kind: weight kind.
      groups: G; 1 if dense or depthwise.
      precision: ``jax.lax.Precision`` name, part of every tuning key.
      spec: the map's relation, or None where it is unknown.
      level: total stride of the map's input voxels.
      density: pairs of the map for each of its output rows, rounded to a power of sqrt(2);
        None where the map is traced.
      sizes: what only a dynamic layer has; empty for others.
      requests: admitted algorithms by product. All three are fixed when the forward product is
        traced: its backward may be traced later, in another context.
      stated: the products for which the user stated a request, ``"auto"`` included.
      view_names: which arrays of the map follow the two operands of each product, in order.
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
        """The layer without its requests and view names: these decide which kernels are asked, and
        not what they answer."""
        return dataclasses.replace(self, requests=(), stated=(), view_names=())

    def channels(self, weight_shape: tuple[int, ...]) -> tuple[int, int]:
        """``(C_in, C_out)`` of a layer with such a weight."""
        if self.kind == "depthwise":
            return weight_shape[-1], weight_shape[-1]
        return self.groups * weight_shape[-2], self.groups * weight_shape[-1]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Static description of a product: everything that a kernel's answer depends on.

    Attributes:
      product: which of the three products.
      layer: :attr:`Layer.of_problems`.
      in_channels, out_channels: channels of the forward relation; both C if depthwise.
      dtype: operand dtype name.
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
        """Make the problem of a product of ``layer`` with these operands, or their shapes."""
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
        """Return this product for a layer with ``changes``."""
        return dataclasses.replace(self, layer=dataclasses.replace(self.layer, **changes))

    def with_sizes(self, **changes: Any) -> Problem:
        """Return this product for a dynamic layer whose sizes differ in ``changes``."""
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
        """Shape of what the product computes."""
        if self.product == "wgrad":
            return self.weight_shape
        return self.out_rows, self.other_channels

    @property
    def out_rows(self) -> int:
        """Rows of the side that this product writes (wgrad: that it sums over)."""
        dgrad = self.product == "dgrad"
        return self.layer.in_capacity if dgrad else self.layer.out_capacity

    @property
    def gathered_rows(self) -> int:
        """Rows of the first operand, which the map's rows are gathered from."""
        dgrad = self.product == "dgrad"
        return self.layer.out_capacity if dgrad else self.layer.in_capacity

    @property
    def gathered_channels(self) -> int:
        """Channels of the first operand."""
        return self.out_channels if self.product == "dgrad" else self.in_channels

    @property
    def other_channels(self) -> int:
        """Channels of the side that is not the first operand's."""
        return self.in_channels if self.product == "dgrad" else self.out_channels


Views = dict[str, jax.Array]
"""The map's arrays by name."""


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
        views: Views,
    ) -> jax.Array: ...


class ApplyOnHost(Protocol):
    """Executes a product of NumPy arrays with the bits of :class:`Apply`, or returns None."""

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
    """What follows a forward product in inference, for each row and channel of its result ``y``:

    ``(y + bias - mean) / sqrt(variance + epsilon) * scale + shift + residual``.

    Attributes:
      valid: ``bool[M]``; the other rows become zero, whatever they and the residual hold.
      mean, variance, scale, shift: ``[C_out]``, each in a dtype of its own.
      bias: ``[C_out]``, or None.
      residual: ``[M, C_out]`` in the dtype of ``y``, or None.
      epsilon: added to the variance.
      relu: negative results become zero.
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
    """Executes a forward product and its epilogue, rounded once, or returns None."""

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
    """Executes dgrad and wgrad of one layer at once: ``(dx, dw)``.

    ``problem`` is that of dgrad; ``views`` are those that both products read.
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
    """dgrad and wgrad at once, of a kernel that is chosen for both.

    Attributes:
      heuristic: ``(problem, hardware, parameters)``, the last those chosen for dgrad, to the
        parameters of the pair; None: one after the other. Those chosen for wgrad do not matter.
      apply: the computation, in traceable JAX.
      on_host: the computation for NumPy arrays, of the same bits; None where it has none.
    """

    heuristic: Callable[[Problem, HardwareInfo, Parameters], Parameters | None]
    apply: ApplyFused
    on_host: Callable[..., tuple[np.ndarray, np.ndarray]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One algorithm on one platform.

    The registry finds every record that a module of :mod:`voxax.kernels` holds.

    Attributes:
      name: the algorithm's name, which users pin: ``"explicit_gemm"``.
      kind: weights that it multiplies; a kernel of dense ones is asked about grouped ones too.
      products: products that it computes.
      platform: where it runs; ``any`` is everywhere.
      supports: ``(problem, hardware) -> None`` if it can run, else the reason why not.
      space: ``(problem, hardware)`` to the parameters worth measuring, at least one where it can
        run.
      heuristic: ``(problem, hardware)`` to the parameters to take unmeasured, one of those.
      reads: ``(parameters, product, symmetric)`` to the names of the map's arrays that it reads.
      apply: the computation, in traceable JAX.
      views: the arrays among those that are built by code beside the kernel, by name. The others
        are the map's own, see :class:`voxax.geometry.KernelMap`.
      on_host: the computation for NumPy arrays, for eager calls on a CPU; None where it has none.
      with_epilogue: the forward product with an :class:`Epilogue`; None where it has no such
        program.
      fused: dgrad and wgrad at once; None where it has no such program.
      preferred: ``(problem, hardware)`` to whether it is taken unmeasured before algorithms that
        come earlier in the registry or the request.
      decisive: ``(problem, hardware)`` to whether it is known to be the fastest by a wide margin:
        where nothing is requested, it is then taken and nothing is measured.
      unproven: it has run on no device yet: where no result can be compared, other algorithms come
        before it.
      alone: where it runs, no other kernel of its name is a candidate.
      revision: raised whenever what was measured before no longer holds.
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
        """The reason why this kernel cannot run this problem, or None."""
        if problem.product not in self.products:
            return f"does not compute {problem.product}"
        reason = self.supports(problem, hardware)
        if reason is None and self.platform not in ("any", problem.platform):
            return f"does not run on {problem.platform}"
        return reason

    def views_of(self, problem: Problem, parameters: Parameters) -> dict[str, View | None]:
        """The arrays that this product reads, by name, and what builds each (None: the map)."""
        names = self.reads(parameters, problem.product, problem.layer.symmetric)
        return {name: self.views.get(name) for name in names}


def first_of(
    space: Callable[[Problem, HardwareInfo], tuple[Parameters, ...]],
) -> Callable[[Problem, HardwareInfo], Parameters]:
    """The heuristic that takes the first parameters of ``space``."""
    return lambda problem, hardware: space(problem, hardware)[0]
