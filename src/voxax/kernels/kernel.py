"""The records :class:`Kernel`, which describes a kernel, and :class:`Problem`, which it solves.

A *kernel* is one algorithm on one platform. An *algorithm* is the set of kernels with one name,
such as ``implicit_gemm``; users request algorithms by name. A :class:`Problem` is one product
(forward, dgrad or wgrad) of one convolution :class:`Layer`.
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
"""The products of a convolution. ``forward``: Y = A W, where A are the input rows that the kernel
map gathers. ``dgrad``: dX = dY W^T over the transposed map. ``wgrad``: dW = A^T dY."""

Uniform = Literal["", "scenes", "all"]
"""What is known about the kernel sizes of a dynamic layer's positions: ``""``: nothing;
``"scenes"``: all positions of a scene have one size; ``"all"``: every position has all taps."""

EVERY_PRODUCT = frozenset[Product]({"forward", "dgrad", "wgrad"})

WeightKind = Literal["dense", "grouped", "depthwise", "dynamic"]
"""The kind of a weight. ``dense``: ``[K, C_in, C_out]``. ``grouped``: ``[K, G, C_in/G, C_out/G]``.
``depthwise``: ``[K, C]``. ``dynamic``: a dense weight over a regular grid, where each output
position has its own kernel size and uses only the taps within that size."""

Parameters = tuple[tuple[str, int | str], ...]
"""The tuning parameters of a kernel, such as tile sizes: hashable pairs of name and value, sorted
by name, for example ``(("fwd_block_size", 16),)``."""


@dataclasses.dataclass(frozen=True)
class GridSizes:
    """The grid of a dynamic layer, and what is known about the kernel sizes of its positions.

    Attributes:
      grid: the shape ``[B, *spatial]`` of the input, whose positions are the layer's input rows.
      tile_density: what :attr:`Layer.density` would be if every position had the largest size of
        its tile, a cube of positions. The two are similar if sizes vary smoothly. None if unknown.
      uniform: see :data:`Uniform`. ``scenes`` may be a guess from concrete sizes, so kernels must
        be right for all sizes; ``all`` is certain.
      prefix: entry s is the number of positions whose size is at least s, rounded up. It is empty
        except for programs that are compiled for one histogram of sizes.
    """

    grid: tuple[int, ...] = ()
    tile_density: float | None = None
    uniform: Uniform = ""
    prefix: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Layer:
    """Static (hashable) description of one convolution layer and its kernel map.

    Attributes:
      in_capacity, out_capacity: number of input and of output rows of the map, with padding.
      num_offsets: K, the number of taps.
      symmetric: whether the transposed map equals the map with its taps reversed, as for a
        submanifold convolution with a centered box.
      kind: the kind of the weight.
      groups: G, the number of groups; 1 unless the weight is grouped.
      precision: name of a ``jax.lax.Precision`` or ``jax.lax.DotAlgorithmPreset``.
      spec: offsets, stride and dilation of the map.
      level: total stride of the map's input voxels, for each axis.
      density: the average number of neighbors of an output row, rounded to a power of sqrt(2);
        None if the map is traced.
      sizes: the grid and sizes of a dynamic layer; empty for other kinds.
      requests: names of the admitted algorithms for each product. Those of dgrad and wgrad are
        fixed when forward is traced, since a ``with`` block may have ended when they are traced.
      stated: the products for which the user stated a request, including ``"auto"``.
      view_names: names of the map's arrays that are passed after the two operands, in order.
    """

    in_capacity: int
    out_capacity: int
    num_offsets: int
    symmetric: bool
    kind: WeightKind
    groups: int
    precision: str
    spec: KernelSpec
    level: tuple[int, ...] = ()
    density: float | None = None
    sizes: GridSizes = GridSizes()
    requests: tuple[tuple[Product, tuple[str, ...]], ...] = ()
    stated: tuple[Product, ...] = ()
    view_names: tuple[str, ...] = ()

    @functools.cached_property
    def of_problems(self) -> Layer:
        """The layer without ``requests``, ``stated`` and ``view_names``, as in :class:`Problem`.

        These fields decide which kernels are considered, not how a kernel solves a problem.
        """
        return dataclasses.replace(self, requests=(), stated=(), view_names=())

    def channels(self, weight_shape: tuple[int, ...]) -> tuple[int, int]:
        """Return ``(C_in, C_out)`` of this layer with a weight of shape ``weight_shape``."""
        if self.kind == "depthwise":
            return weight_shape[-1], weight_shape[-1]
        return self.groups * weight_shape[-2], self.groups * weight_shape[-1]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Static description of one product: all that a kernel needs to decide whether and how to run.

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
        """Describe the product of ``a`` and ``b`` (arrays or ``ShapeDtypeStruct``) in ``layer``."""
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
        """Return a copy of this problem whose layer has the fields in ``changes`` replaced."""
        return dataclasses.replace(self, layer=dataclasses.replace(self.layer, **changes))

    def with_sizes(self, **changes: Any) -> Problem:
        """Return a copy of this problem with fields of its layer's :class:`GridSizes` replaced."""
        return self.with_layer(sizes=dataclasses.replace(self.layer.sizes, **changes))

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the layer's weight, which depends on its kind, see :data:`WeightKind`."""
        taps, c_in, c_out = self.layer.num_offsets, self.in_channels, self.out_channels
        if self.layer.kind == "depthwise":
            return (taps, c_in)
        if self.layer.kind == "grouped":
            groups = self.layer.groups
            return (taps, groups, c_in // groups, c_out // groups)
        return (taps, c_in, c_out)

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the operands ``a, b`` of the product, see :class:`Apply`."""
        x = self.layer.in_capacity, self.in_channels
        dy = self.layer.out_capacity, self.out_channels
        weight = self.weight_shape
        return {"forward": (x, weight), "dgrad": (dy, weight), "wgrad": (x, dy)}[self.product]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the product's result: of y, dx or dw."""
        if self.product == "wgrad":
            return self.weight_shape
        return self.out_rows, self.other_channels

    @property
    def out_rows(self) -> int:
        """Number of rows of y (forward), of dx (dgrad), or of dy, over which wgrad sums."""
        dgrad = self.product == "dgrad"
        return self.layer.in_capacity if dgrad else self.layer.out_capacity

    @property
    def gathered_rows(self) -> int:
        """Number of rows of the first operand: of x, or of dy for dgrad."""
        dgrad = self.product == "dgrad"
        return self.layer.out_capacity if dgrad else self.layer.in_capacity

    @property
    def gathered_channels(self) -> int:
        """Number of channels of the first operand: C_in, or C_out for dgrad."""
        return self.out_channels if self.product == "dgrad" else self.in_channels

    @property
    def other_channels(self) -> int:
        """Number of channels of y (forward), dx (dgrad) or dy (wgrad): C_out, or C_in for dgrad."""
        return self.in_channels if self.product == "dgrad" else self.out_channels


Views = dict[str, jax.Array]
"""The arrays of a kernel map by name, such as ``neighbors``, the table ``int32[rows, K]``."""


class Apply(Protocol):
    """The signature of :attr:`Kernel.apply`, a function that computes one product in JAX.

    ``problem`` describes the product; ``parameters`` are the kernel's tuning parameters. The
    operands ``a, b`` are ``x [N, C_in], w`` for forward, ``dy [M, C_out], w`` for dgrad and
    ``x, dy`` for wgrad, for N input rows, M output rows and a weight ``w``, see
    :data:`WeightKind`. ``views`` are the map's arrays by name. The function returns
    ``y [M, C_out]``, ``dx [N, C_in]`` or ``dw`` in the dtype of ``a``, or int32 for 8- and 16-bit
    integers. Sums are in float32 or wider.
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
    """:class:`Apply` for NumPy arrays: a function that returns the same bits without JAX.

    It may return None if it cannot compute the product of these arrays.
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
    """Batch norm, residual and ReLU, applied to the result y of a forward product in inference.

    Before ReLU, the result is
    ``(y + bias - mean) / sqrt(variance + epsilon) * scale + shift + residual``.

    Attributes:
      valid: ``bool[M]``, False for rows that become zero, even if they or the residual have NaN.
      mean, variance, scale, shift: ``[C_out]``; their dtypes may differ.
      bias: ``[C_out]``, or None.
      residual: ``[M, C_out]``, or None.
      epsilon: the number that is added to the variance.
      relu: whether negative results become zero, as the last operation.
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
    """The signature of :attr:`Kernel.with_epilogue`: a forward product with an :class:`Epilogue`.

    The other arguments are those of :class:`Apply`. The function returns ``[M, C_out]``, or None if
    it cannot apply the epilogue.
    """

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
    """The signature of a function that computes dgrad and wgrad together, as ``(dx, dw)``.

    ``problem`` describes dgrad. The operands are ``dy [M, C_out]``, ``x [N, C_in]`` and the weight
    ``w``. ``views`` has all arrays of the map that the two products read.
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
    """A program that computes dgrad and wgrad together, if one kernel is chosen for both.

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
    """One algorithm on one platform: its computation, where it can run, and its tuning parameters.

    The registry finds every record in the modules of :mod:`voxax.kernels`.

    Attributes:
      name: the algorithm's name, as users request it, such as ``"explicit_gemm"``.
      kind: the kind of weights that the kernel multiplies. Kernels of dense weights are considered
        for grouped weights too.
      products: the products that the kernel computes.
      platform: the platform that the kernel runs on, or ``any``.
      supports: a function of ``(problem, hardware)`` that returns None if the kernel can run, else
        the reason why not.
      space: a function of ``(problem, hardware)`` that returns the parameters worth measuring, at
        least one if the kernel can run.
      heuristic: a function of ``(problem, hardware)`` that returns the parameters to use if nothing
        was measured, one of ``space``.
      reads: a function of ``(parameters, product, symmetric)`` that returns the names of the map's
        arrays that the kernel reads.
      apply: the computation, in traceable JAX.
      views: builders of the arrays in ``reads`` that are specific to this kernel, by name. A
        :class:`voxax.geometry.KernelMap` provides the other arrays.
      on_host: the computation for NumPy arrays, for eager calls on a CPU, or None.
      with_epilogue: the forward product with an :class:`Epilogue`, or None.
      fused: the program that computes dgrad and wgrad together, or None.
      preferred: a function of ``(problem, hardware)`` that returns whether the kernel comes before
        algorithms that are earlier in the registry or the request, if nothing was measured.
      decisive: a function of ``(problem, hardware)`` that returns whether the kernel is known to be
        by far the fastest. Such a kernel is chosen without measuring, unless the user requests
        algorithms.
      unproven: whether the kernel has not run on any device yet. If its result cannot be checked,
        other algorithms come before it.
      alone: whether the other kernels of its name are left out wherever this kernel can run.
      revision: a number to raise when a change of the kernel makes earlier measurements invalid.
      rank: sort key in the order of preference, lowest first, see :mod:`voxax.kernels.registry`.
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
        """Return the reason why this kernel cannot run this problem, or None if it can."""
        if problem.product not in self.products:
            return f"does not compute {problem.product}"
        reason = self.supports(problem, hardware)
        if reason is None and self.platform not in ("any", problem.platform):
            return f"does not run on {problem.platform}"
        return reason

    def views_of(self, problem: Problem, parameters: Parameters) -> dict[str, View | None]:
        """Return the map arrays that the kernel reads for ``problem``, as ``{name: builder}``.

        The builder is None for an array that the kernel map provides.
        """
        names = self.reads(parameters, problem.product, problem.layer.symmetric)
        return {name: self.views.get(name) for name in names}


def first_of(
    space: Callable[[Problem, HardwareInfo], tuple[Parameters, ...]],
) -> Callable[[Problem, HardwareInfo], Parameters]:
    """Return a :attr:`Kernel.heuristic`, a function that returns the first of ``space``."""
    return lambda problem, hardware: space(problem, hardware)[0]
