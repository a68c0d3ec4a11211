"""Sparse convolution modules, ordinary, grouped and depthwise, for one to four spatial axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import FrozenDict

from voxax import _compat
from voxax.errors import InputError
from voxax.geometry import KernelMap, KernelShape, KernelSpec, Voxels
from voxax.geometry.call_checks import axes_hint
from voxax.geometry.kernel_spec import static_shape
from voxax.kernels.kernel import WeightKind
from voxax.nn.arguments import (
    check_channels,
    check_groups,
    check_keeps_voxels,
    own_ndim,
    refuse_arrays,
    refuse_points,
    static,
)
from voxax.nn.functional import depthwise_conv, spatially_sparse_conv
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.keys import next_key
from voxax.tuning import Request, Resolved
from voxax.tuning.request import frozen


def he_normal(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Draw initial weights from a normal distribution of variance ``2 / fan_in``.

    The fan-in is the product of all axes except the last. Outside a trace NumPy draws the numbers,
    because ``jax.nn.initializers.he_normal`` would compile several programs for every shape. The
    distribution is the same as under a trace, but the values differ.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015.
    """
    scale = math.sqrt(2 / max(math.prod(shape[:-1]), 1))
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    if _compat.is_traced(words):
        return (jax.random.normal(key, shape, jnp.float32) * scale).astype(dtype)
    # Wait first: NumPy ends the process on an array whose allocation failed.
    seed = np.asarray(jax.block_until_ready(words)).ravel().tolist()
    drawn = np.random.Generator(np.random.Philox(seed)).standard_normal(shape, np.float32)
    return jax.device_put((drawn * np.float32(scale)).astype(dtype))


def zeros(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Return zeros; ``key`` is not used, and no program is compiled for the shape."""
    del key
    return filled(shape, 0, dtype)


def filled(shape: Sequence[int], value: float, dtype: Any) -> jax.Array:
    """Return an array of one value; ``jnp.full`` would compile a program for every shape."""
    return jax.device_put(np.full(shape, value, dtype))


Initializer = Callable[..., jax.Array]


def initial_bias(
    use_bias: bool, bias_init: Initializer, rngs: nnx.Rngs, channels: int, dtype: Any
) -> nnx.Param | None:
    """Return a bias ``[channels]`` drawn by ``bias_init``, or None if ``use_bias`` is False."""
    return nnx.Param(bias_init(next_key(rngs.params), (channels,), dtype)) if use_bias else None


class Dtypes(TypedDict, total=False):
    """Keyword arguments of all layers with parameters."""

    dtype: Any
    param_dtype: Any


class AlgorithmOptions(TypedDict, total=False):
    """Keyword arguments that select how convolutions are computed."""

    precision: jax.lax.PrecisionLike
    fwd_algo: Request
    bwd_algo: Request
    dgrad_algo: Request
    wgrad_algo: Request


class LayerOptions(Dtypes, AlgorithmOptions, total=False):
    """Keyword arguments that networks pass to layers: dtypes, and algorithms of sparse layers."""


class NetworkOptions(LayerOptions, total=False):
    """The keys of :class:`LayerOptions`, and ``ndim`` for networks of any number of axes."""

    ndim: int | None


class ConvOptions(NetworkOptions, total=False):
    """Keyword arguments that a block passes to its convolution, besides ``rngs``."""

    dilation: int | Sequence[int]
    groups: int
    generative: bool
    capacity: int | None
    kernel_init: Initializer
    bias_init: Initializer
    kernel_shape: KernelShape
    spatial_shape: int | Sequence[int] | None


def dtypes_of(options: LayerOptions) -> Dtypes:
    """Return the entries ``dtype`` and ``param_dtype`` of a layer's options, if they exist."""
    found: Any = {k: v for k, v in options.items() if k in Dtypes.__annotations__}
    return found


class Convolution(CheckedModule):
    """Base class of sparse convolution modules, which call :attr:`FUNCTION` with their weights.

    Subclasses set :attr:`FUNCTION` to a convolution of :mod:`voxax.nn.functional`.

    Attributes:
      weight, bias: the parameters; bias may be None.
      relation: keyword arguments of :attr:`FUNCTION` that describe the kernel map, such as stride.
      options: other static keyword arguments of :attr:`FUNCTION`, such as precision.
    """

    NDIM: ClassVar[int | None] = None
    FUNCTION: ClassVar[Callable[..., Voxels]]

    weight: nnx.Param
    bias: nnx.Param | None

    def _describe(
        self,
        in_channels: int,
        ndim: int | None,
        relation: dict[str, Any],
        capacity: int | None,
        dtype: Any,
        options: dict[str, Any],
    ) -> KernelSpec:
        """Store the static arguments as attributes, and return the spec of the kernel map.

        ``relation`` and ``options`` become the attributes of the same names. The spec follows from
        ``relation``.
        """
        self.in_channels, self.ndim = in_channels, own_ndim(self, ndim)
        shape = static_shape(relation["kernel_shape"])
        relation = {name: static(value) for name, value in relation.items()}
        relation["kernel_shape"] = shape
        self.relation: Mapping[str, Any] = FrozenDict(relation)
        self.options: Mapping[str, Any] = FrozenDict(options)
        self.kernel_size, self.capacity = relation["kernel_size"], static(capacity)
        self.dtype = dtype
        return KernelSpec.make(self.ndim, **relation)

    def __call__(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None = None,
        *,
        kernel_map: KernelMap | None = None,
    ) -> Voxels:
        """Return the convolved voxels, on the coordinates of ``out_voxels`` if given.

        A transposed convolution needs ``out_voxels`` or ``kernel_map``, unless it is generative.
        """
        voxels, weight, given = self.call_arguments(voxels, out_voxels, kernel_map)
        with jax.named_scope(type(self).__name__):  # the layer's name in profiles
            return type(self).FUNCTION(voxels, weight, **given, **self.options)

    def call_arguments(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None = None,
        kernel_map: KernelMap | None = None,
    ) -> tuple[Voxels, jax.Array, dict[str, Any]]:
        """Check the input of a call, and return the arguments of :attr:`FUNCTION` for it.

        Returns:
          The voxels and the weight in the layer's dtype, and the keyword arguments besides
          :attr:`options`.
        """
        check_input(self, voxels)
        weight, bias = self.weight[...], None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            weight = weight.astype(self.dtype)
            # A cast also clears the padding, which costs an extra kernel on GPUs.
            if voxels.features.dtype != self.dtype:
                voxels = voxels.map(lambda f: f.astype(self.dtype))
        given: dict[str, Any] = {"kernel_map": kernel_map, "out_voxels": out_voxels, "bias": bias}
        if kernel_map is None:
            given |= {**self.relation, "capacity": self.capacity}
        return voxels, weight, given


class SpatiallySparseConv(Convolution):
    """Spatially sparse convolution in any number of dimensions.

    Args:
      in_channels, out_channels: numbers of channels of the input features ``[capacity, C_in]`` and
        of the output features ``[out_capacity, C_out]``.
      kernel_size: taps along each axis, an integer or one per axis.
      stride: input cells per output cell along each axis, an integer or one per axis.
      dilation: input cells from one tap to the next, an integer or one per axis.
      groups: number of channel groups, which divides both numbers of channels.
      ndim: number of spatial axes; None takes that of the class, or 3 in a class for any number.
      transposed: whether to convolve from coarse to fine voxels (the adjoint). The call then needs
        ``out_voxels``, unless ``generative`` is True.
      generative: whether to create an output voxel at every site that a kernel offset connects with
        an input voxel.
      use_bias: whether to add a bias.
      capacity: static number of rows of new output voxels. None takes the capacity that
        :func:`voxax.plan` gave this level. Without a plan, None takes the input's capacity, or with
        ``generative`` counts the new voxels, which needs an eager call.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo: which algorithms may be used; see
        :func:`voxax.nn.functional.spatially_sparse_conv`. Names are checked when the module is
        built.
      dtype: computation dtype; None promotes the dtypes of features and weight.
      param_dtype: dtype of the stored parameters.
      kernel_init, bias_init: initializers. ``kernel_init`` gets the shape ``[K, C_in/G, C_out]``
        for K taps and G groups: the fan-in is ``K * C_in / G``.
      precision, kernel_shape, spatial_shape: see
        :func:`voxax.nn.functional.spatially_sparse_conv`.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Examples:
      >>> conv = modules.SpatiallySparseConv(4, 8, 2, stride=2, ndim=3, rngs=nnx.Rngs(0))
      >>> conv(voxels).stride
      (2, 2, 2)
    """

    FUNCTION = staticmethod(spatially_sparse_conv)
    KEEPS_VOXELS: ClassVar[bool] = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        ndim: int | None = None,
        transposed: bool = False,
        generative: bool = False,
        use_bias: bool = True,
        capacity: int | None = None,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        dgrad_algo: Request = None,
        wgrad_algo: Request = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: jax.lax.PrecisionLike = None,
        kernel_shape: KernelShape = "box",
        spatial_shape: int | Sequence[int] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if self.KEEPS_VOXELS:
            check_keeps_voxels(self, stride, transposed, generative)
        check_groups(groups, in_channels, out_channels)
        rngs = own_rngs(rngs)
        relation = {
            "kernel_size": kernel_size,
            "stride": stride,
            "dilation": dilation,
            "transposed": transposed,
            "generative": generative,
            "kernel_shape": kernel_shape,
            "spatial_shape": spatial_shape,
        }
        kind: WeightKind = "dense" if groups == 1 else "grouped"
        requests = static_requests(kind, fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
        options = {"groups": groups, "precision": precision, **requests}
        spec = self._describe(in_channels, ndim, relation, capacity, dtype, options)
        taps, c_in = spec.num_offsets, in_channels // groups
        weight = kernel_init(next_key(rngs.params), (taps, c_in, out_channels), param_dtype)
        if groups > 1:
            weight = weight.reshape(taps, c_in, groups, out_channels // groups).swapaxes(1, 2)
        self.weight = nnx.Param(weight)
        self.bias = initial_bias(use_bias, bias_init, rngs, out_channels, param_dtype)
        self.out_channels = out_channels


class SpatiallySparseDepthwiseConv(Convolution):
    """Spatially sparse depthwise convolution: one filter per channel.

    Args:
      channels: number C of channels of both input and output features, ``[capacity, C]``.
      kernel_size, stride, dilation, kernel_shape, ndim, transposed, use_bias, capacity, precision:
        as in :class:`SpatiallySparseConv`.
      fwd_algo, bwd_algo: which depthwise algorithms may be used; see
        :func:`voxax.nn.functional.spatially_sparse_depthwise_conv`.
      dtype, param_dtype, kernel_init, bias_init, rngs: as in :class:`SpatiallySparseConv`. The
        initializer gets the weight's shape as ``[K, 1, C]``; the weight is ``[K, C]``.

    Examples:
      >>> conv = modules.SpatiallySparseDepthwiseConv(4, kernel_size=3, rngs=nnx.Rngs(0))
      >>> conv(voxels).num_channels
      4
    """

    FUNCTION = staticmethod(depthwise_conv)

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        ndim: int | None = None,
        transposed: bool = False,
        use_bias: bool = True,
        capacity: int | None = None,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: jax.lax.PrecisionLike = None,
        kernel_shape: KernelShape = "box",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = own_rngs(rngs)
        relation = {
            "kernel_size": kernel_size,
            "stride": stride,
            "dilation": dilation,
            "transposed": transposed,
            "kernel_shape": kernel_shape,
        }
        requests = static_requests("depthwise", fwd_algo, bwd_algo)
        options = {"precision": precision, **requests}
        spec = self._describe(channels, ndim, relation, capacity, dtype, options)
        weight = kernel_init(next_key(rngs.params), (spec.num_offsets, 1, channels), param_dtype)
        self.weight = nnx.Param(weight[:, 0])
        self.bias = initial_bias(use_bias, bias_init, rngs, channels, param_dtype)


def static_requests(kind: WeightKind, *requests: Request) -> dict[str, Resolved | None]:
    """Return a dict of algorithm requests in hashable form, by argument name.

    ``requests`` are the values of ``fwd_algo``, ``bwd_algo``, ``dgrad_algo`` and ``wgrad_algo`` in
    this order; the last ones may be left out. ``kind`` is the kind of the weight, such as
    ``"grouped"``.

    Raises:
      AlgorithmError: a request is unknown.
    """
    names = ("fwd_algo", "bwd_algo", "dgrad_algo", "wgrad_algo")
    return {n: frozen(request, kind, n) for n, request in zip(names, requests, strict=False)}


def check_input(module: Any, voxels: Voxels) -> None:
    """Raise :class:`InputError` unless the voxels have the module's number of axes and channels."""
    name = type(module).__name__
    refuse_arrays(module, voxels)
    refuse_points(module, voxels)
    if voxels.geometry.ndim != module.ndim:
        ndim = voxels.geometry.ndim
        hint = axes_hint(module.ndim, ndim)
        raise InputError(f"{name} has ndim={module.ndim}, the voxels are {ndim}-D{hint}")
    check_channels(module, module.in_channels, voxels)


class SparseConv1d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on one axis; stride 1 keeps the voxels (submanifold)."""

    NDIM = 1


class SparseConv2d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on two axes; stride 1 keeps the voxels (submanifold)."""

    NDIM = 2


class SparseConv3d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on three axes; stride 1 keeps the voxels (submanifold).

    At stride 1, spconv's ``SparseConv3d`` adds output voxels around the input. To get these voxels
    here, pass ``generative=True``, and ``spatial_shape=`` to clip them as spconv does.

    Examples:
      >>> down = modules.SparseConv3d(4, 8, kernel_size=2, stride=2, rngs=nnx.Rngs(0))
      >>> down(voxels).stride
      (2, 2, 2)
      >>> grow = modules.SparseConv3d(4, 8, generative=True, rngs=nnx.Rngs(0))
      >>> int(grow(voxels).count) > int(voxels.count)
      True
    """

    NDIM = 3


class SparseConv4d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on four axes, such as space and time; stride 1 keeps voxels."""

    NDIM = 4


class SubMConv(SpatiallySparseConv):
    """Submanifold convolution: the output voxels are the input voxels.

    Arguments are as in :class:`SpatiallySparseConv`. A stride other than 1, ``transposed`` and
    ``generative`` raise :class:`voxax.InputError`.

    Source: Graham, Engelcke, van der Maaten, "3D Semantic Segmentation with Submanifold
    Sparse Convolutional Networks", CVPR 2018.
    """

    KEEPS_VOXELS = True


class SubMConv1d(SubMConv):
    """:class:`SubMConv` on one axis."""

    NDIM = 1


class SubMConv2d(SubMConv):
    """:class:`SubMConv` on two axes."""

    NDIM = 2


class SubMConv3d(SubMConv):
    """:class:`SubMConv` on three axes.

    Examples:
      >>> conv = modules.SubMConv3d(4, 8, kernel_size=3, rngs=nnx.Rngs(0))
      >>> y = conv(voxels)
      >>> y.num_channels, int(y.count) == int(voxels.count)
      (8, True)
    """

    NDIM = 3


class SubMConv4d(SubMConv):
    """:class:`SubMConv` on four axes."""

    NDIM = 4


class SparseConvTranspose(SpatiallySparseConv):
    """Transposed convolution from coarse to fine voxels, the adjoint of a strided convolution.

    A call with ``out_voxels`` returns features at the coordinates of these voxels, like spconv's
    ``SparseInverseConv``. With ``generative=True`` the output has a voxel at every site that a
    kernel offset connects with an input voxel, like spconv's ``SparseConvTranspose``. Arguments are
    as in :class:`SpatiallySparseConv`; kernel size and stride are 2 by default.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 2,
        stride: int | Sequence[int] = 2,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        ndim: int | None = None,
        generative: bool = False,
        use_bias: bool = True,
        capacity: int | None = None,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        dgrad_algo: Request = None,
        wgrad_algo: Request = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: jax.lax.PrecisionLike = None,
        kernel_shape: KernelShape = "box",
        spatial_shape: int | Sequence[int] | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            dilation,
            groups,
            ndim=ndim,
            transposed=True,
            generative=generative,
            use_bias=use_bias,
            capacity=capacity,
            fwd_algo=fwd_algo,
            bwd_algo=bwd_algo,
            dgrad_algo=dgrad_algo,
            wgrad_algo=wgrad_algo,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            precision=precision,
            kernel_shape=kernel_shape,
            spatial_shape=spatial_shape,
            rngs=rngs,
        )


class SparseConvTranspose1d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on one axis."""

    NDIM = 1


class SparseConvTranspose2d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on two axes."""

    NDIM = 2


class SparseConvTranspose3d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on three axes.

    Examples:
      >>> down = modules.SparseConv3d(4, 8, kernel_size=2, stride=2, rngs=nnx.Rngs(0))
      >>> up = modules.SparseConvTranspose3d(8, 4, rngs=nnx.Rngs(0))
      >>> up(down(voxels), voxels).stride
      (1, 1, 1)
      >>> every = modules.SparseConvTranspose3d(8, 4, generative=True, rngs=nnx.Rngs(0))
      >>> every(down(voxels)).stride
      (1, 1, 1)
    """

    NDIM = 3


class SparseConvTranspose4d(SparseConvTranspose):
    """:class:`SparseConvTranspose` on four axes."""

    NDIM = 4
