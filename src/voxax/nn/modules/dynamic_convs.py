"""Dynamic convolution modules: kernel size, offsets or weights depend on the position or input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import FrozenDict

from voxax._array_types import Array, Float, Num
from voxax.errors import InputError, check_whole
from voxax.geometry import KernelSpec, Voxels
from voxax.geometry.kernel_spec import per_axis
from voxax.kernels.dynamic.grid import box_conv
from voxax.nn.arguments import own_ndim, static
from voxax.nn.dynamic.bank import frozen_bank
from voxax.nn.dynamic.deform_conv import Modulation, deform_conv
from voxax.nn.dynamic.dynamic_conv import dynamic_conv
from voxax.nn.dynamic.focal_conv import focal_conv
from voxax.nn.dynamic.sparse_dynamic_conv import sparse_dynamic_conv
from voxax.nn.functional.sparse_conv import spatially_sparse_conv
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.keys import HostKeys, next_key
from voxax.nn.modules.sparse_convs import (
    Initializer,
    check_input,
    he_normal,
    initial_bias,
    static_requests,
    zeros,
)
from voxax.products.convolution import precision_name
from voxax.tuning import Request
from voxax.tuning.request import frozen


class DynamicConv(CheckedModule):
    """Convolve grids ``[B, *spatial, C]`` with a kernel size or dilation for each position.

    See :func:`voxax.nn.functional.dynamic_conv`. The module has a learned weight.

    Args:
      in_channels, out_channels: numbers of channels C and C_out.
      kernel_size: the largest kernel size, an integer or one per axis.
      ndim: number of spatial axes, 1 to 3.
      stride: an integer or one per axis.
      use_bias: whether to add a bias.
      num_weights: number M of weights that ``mixture`` mixes. None is one weight without mixture.
      bank: the sizes for ``algorithm="bank"``, or their number; None is 3.
      coarse_from: smallest size that ``"bank"`` computes at half resolution; None for no size.
      tau: width, in sizes, of the ramp by which taps fade in if sizes are floats.
      algorithm: the allowed algorithms; None follows the enclosing :func:`voxax.algorithms`, then
        the environment variable (see docs/algorithms.md).
      dtype: dtype of the computation; None promotes the dtypes of input and weight.
      param_dtype: dtype of the parameters.
      kernel_init, bias_init: initializers. The weight is drawn as ``[K, C, C_out]``, with K taps.
      precision: precision of the products, as in ``dynamic_conv``.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Attributes:
      weight: ``[*T, C, C_out]`` with T the largest kernel size; ``[M, *T, C, C_out]`` with
        ``num_weights``.
      bias: ``[C_out]`` or None.

    Examples:
      >>> conv = modules.DynamicConv(3, 8, 5, rngs=nnx.Rngs(0))
      >>> conv(jnp.ones((1, 16, 16, 3)), size=jnp.full((1, 16, 16), 3)).shape
      (1, 16, 16, 8)
    """

    weight: nnx.Param
    bias: nnx.Param | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        *,
        ndim: int = 2,
        stride: int | Sequence[int] = 1,
        use_bias: bool = True,
        num_weights: int | None = None,
        bank: int | Sequence[int] | None = None,
        coarse_from: int | None = None,
        tau: float = 1.0,
        algorithm: Request = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        if bank is not None and algorithm != "bank":
            raise InputError(
                f"bank={bank} are the sizes of algorithm='bank', got algorithm={algorithm!r}: give "
                f"num_weights={bank} for weights that a mixture mixes, or algorithm='bank'"
            )
        if coarse_from is not None and algorithm != "bank":
            raise InputError(
                f"coarse_from={coarse_from} is of algorithm='bank', got algorithm={algorithm!r}: "
                "give algorithm='bank', or leave it out"
            )
        rngs = own_rngs(rngs)
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.in_channels, self.out_channels, self.dtype = in_channels, out_channels, dtype
        self.tau, self.precision = float(tau), precision
        self.algorithm = (
            algorithm if algorithm == "bank" else frozen(algorithm, "dynamic", "algorithm")
        )
        given = {"coarse_from": coarse_from} | ({} if bank is None else {"bank": frozen_bank(bank)})
        self.of_bank: Mapping[str, Any] = FrozenDict(given if algorithm == "bank" else {})
        taps = math.prod(self.kernel_size)
        kernels = [
            kernel_init(next_key(rngs.params), (taps, in_channels, out_channels), param_dtype)
            for _ in range(num_weights or 1)
        ]
        shape = (*self.kernel_size, in_channels, out_channels)
        weight = jnp.stack(kernels).reshape(
            *(() if num_weights is None else (num_weights,)), *shape
        )
        self.weight = nnx.Param(weight)
        self.bias = initial_bias(use_bias, bias_init, rngs, out_channels, param_dtype)

    def __call__(
        self,
        x: Float[Array, "B *spatial C"],
        *,
        size: jax.Array | int | None = None,
        dilation: jax.Array | int | Sequence[int] | None = None,
        offsets: Num[Array, "B *outputs K D"] | None = None,
        mask: Num[Array, "B *outputs K"] | None = None,
        mixture: Float[Array, "B M"] | Float[Array, "B *outputs M"] | None = None,
    ) -> Float[Array, "B *outputs C_out"]:
        """Convolve ``x``. Arguments are as in :func:`voxax.nn.functional.dynamic_conv`."""
        weight = self.weight[...]
        bias = None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            x, weight = x.astype(self.dtype), weight.astype(self.dtype)
            bias = None if bias is None else bias.astype(self.dtype)
        return dynamic_conv(
            x,
            weight,
            size=size,
            dilation=dilation,
            offsets=offsets,
            mask=mask,
            mixture=mixture,
            stride=self.stride,
            algorithm=self.algorithm,
            bias=bias,
            tau=self.tau,
            precision=self.precision,
            **self.of_bank,
        )


class SparseDynamicConv(CheckedModule):
    """Sparse convolution whose kernel size and weights can differ between voxels.

    See :func:`voxax.nn.functional.sparse_dynamic_conv`.

    With ``learn_size`` a linear head predicts the kernel size of a voxel, 1 to ``kernel_size``,
    from its features. Sizes are whole numbers in training too, so training and evaluation give the
    same result. The gradient with respect to a size is the mean of the slopes to the next larger
    and the next smaller size. Evaluation (``module.eval()``) saves time by skipping taps.

    With ``num_weights`` > 1 a second linear head mixes that many weights by softmax (Chen et al.,
    "Dynamic Convolution: Attention over Convolution Kernels", CVPR 2020). In the paper the features
    of a whole image determine the mixture; here the features of each voxel do.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size: the largest size, an integer.
      stride, dilation: integers, or one per axis. ``learn_size`` and ``num_weights`` > 1 need
        stride 1.
      ndim: number of spatial axes, 3 unless the class has another number.
      learn_size: whether to add a head that predicts sizes.
      num_weights: number of weights that the second head mixes; 1 adds no second head.
      use_bias, dtype, param_dtype, kernel_init, bias_init, precision, fwd_algo, bwd_algo, rngs: as
        in :class:`SpatiallySparseConv`.
      algorithm: the allowed strategies, ``"grouped"`` and ``"masked"``, as in
        ``sparse_dynamic_conv``.
    """

    NDIM: int | None = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 5,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        ndim: int | None = None,
        learn_size: bool = False,
        num_weights: int = 1,
        use_bias: bool = True,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        algorithm: Request = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: Any = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.in_channels, self.out_channels = in_channels, out_channels
        self.ndim = own_ndim(self, ndim)
        steps = per_axis(stride, self.ndim, "stride")
        if (learn_size or num_weights > 1) and any(s != 1 for s in steps):
            raise InputError(
                f"stride={stride}: heads read the output's own voxels, so learn_size and "
                "num_weights need stride 1; give size= and mixture= for strided outputs when "
                "calling"
            )
        rngs = own_rngs(rngs)
        self.kernel_size, self.dtype = check_whole("kernel_size", kernel_size), dtype
        self.deterministic = False
        options = {
            "kernel_size": self.kernel_size,
            "stride": steps,
            "dilation": per_axis(dilation, self.ndim, "dilation"),
            "algorithm": frozen(algorithm, "dynamic", "algorithm"),
            "precision": precision,
            **static_requests("dense", fwd_algo, bwd_algo),
        }
        self.options: Mapping[str, Any] = FrozenDict(options)
        taps = KernelSpec.make(self.ndim, self.kernel_size).num_offsets
        shape = (taps, in_channels, out_channels)
        weights = [
            kernel_init(next_key(rngs.params), shape, param_dtype) for _ in range(num_weights)
        ]
        self.weight = nnx.Param(weights[0] if num_weights == 1 else jnp.stack(weights))
        self.bias = initial_bias(use_bias, bias_init, rngs, out_channels, param_dtype)

        keys: Any = HostKeys(rngs)

        def head(features: int) -> nnx.Linear:
            # Zero weights: every voxel starts with the middle size and equal parts of the weights.
            return nnx.Linear(
                in_channels, features, kernel_init=jax.nn.initializers.zeros, dtype=dtype,
                param_dtype=param_dtype, precision=precision, rngs=keys,
            )  # fmt: skip

        self.size_head = head(1) if learn_size else None
        self.mixture_head = head(num_weights) if num_weights > 1 else None

    def sizes(self, voxels: Voxels) -> jax.Array:
        """Return the predicted kernel size of each voxel, ``float[capacity]`` with whole numbers.

        The gradient is that of the size before rounding.

        Raises:
          InputError: the module has no size head.
        """
        if self.size_head is None:
            raise InputError("this module has no size head: make it with learn_size=True")
        check_input(self, voxels)
        clean = jnp.where(voxels.geometry.valid[:, None], voxels.features, 0)
        size = 1 + (self.kernel_size - 1) * jax.nn.sigmoid(self.size_head(clean)[:, 0])
        return size + jax.lax.stop_gradient(jnp.round(size) - size)

    def __call__(
        self,
        voxels: Voxels,
        size: jax.Array | int | None = None,
        mask: Num[Array, "out_capacity K"] | None = None,
        mixture: Num[Array, "out_capacity M"] | None = None,
    ) -> Voxels:
        """Return the convolved voxels.

        ``size`` is one number or ``[out_capacity]``, and ``mixture`` is ``[out_capacity, M]``. If
        ``size`` is None, ``size_head`` predicts it, and if ``mixture`` is None, ``mixture_head``
        does, provided that the module has this head.
        ``mask [out_capacity, K]`` has a factor for each voxel and tap. Float sizes are soft in
        training, with ``tau`` of 1 as in :func:`voxax.nn.functional.sparse_dynamic_conv`, and
        rounded down in evaluation.
        """
        check_input(self, voxels)
        if size is None and self.size_head is not None:
            size = self.sizes(voxels)
        if mixture is None and self.mixture_head is not None:
            clean = jnp.where(voxels.geometry.valid[:, None], voxels.features, 0)
            mixture = jax.nn.softmax(self.mixture_head(clean), axis=-1)
        weight, bias = self.weight[...], None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            weight = weight.astype(self.dtype)
            voxels = voxels.map(lambda f: f.astype(self.dtype))
        given = None if size is None else jnp.asarray(size)
        soft = given is not None and jnp.issubdtype(given.dtype, jnp.floating)
        with jax.named_scope(type(self).__name__):
            return sparse_dynamic_conv(
                voxels,
                weight,
                bias=bias,
                size=given,
                tau=1.0 if soft and not self.deterministic else None,
                mask=mask,
                mixture=mixture,
                **self.options,
            )


class SparseDynamicConv2d(SparseDynamicConv):
    """A :class:`SparseDynamicConv` with two spatial axes."""

    NDIM = 2


class SparseDynamicConv3d(SparseDynamicConv):
    """A :class:`SparseDynamicConv` with three spatial axes.

    Examples:
      >>> conv = modules.SparseDynamicConv3d(4, 8, 3, learn_size=True, rngs=nnx.Rngs(0))
      >>> conv(voxels).num_channels
      8
    """

    NDIM = 3


class DeformConv(CheckedModule):
    """Deformable convolution on grids ``[B, *spatial, C]``, which predicts the offsets of its taps.

    See :func:`voxax.nn.functional.deform_conv`. A second convolution of the same kernel size,
    stride and dilation predicts the offset and the mask of each tap. Its parameters start at zero,
    so the layer starts as an ordinary convolution, whose sum over the taps is halved with
    ``sigmoid`` and divided by the number of taps with ``softmax``.

    Args:
      in_channels, out_channels: numbers of channels C and C_out, equal without a weight.
      kernel_size, stride, dilation: integers, or one per axis.
      ndim: number of spatial axes, 1 to 3.
      offset_groups: number of groups of channels that have different offsets.
      modulation: ``"sigmoid"`` (v2), ``"softmax"`` (v3), ``"plain"`` (v4); None has no mask (v1).
      use_weight: whether there is a weight. False sums the taps of each channel (v3, v4).
      use_bias: whether to add a bias.
      groups: number of channel groups of the weight (grouped convolution).
      dtype: dtype of the computation; None is the dtype of the input.
      param_dtype: dtype of the parameters.
      kernel_init, bias_init: initializers. The weight is drawn as ``[K, C / groups, C_out]``, with
        K taps.
      precision: precision of the products, as in ``deform_conv``.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Attributes:
      weight: ``[*T, C / groups, C_out]`` with kernel size T, or None.
      bias: ``[C_out]`` or None.
      predict, predict_bias: parameters of the convolution that predicts offsets and mask.

    Examples:
      >>> conv = modules.DeformConv(3, 8, 3, rngs=nnx.Rngs(0))
      >>> conv(jnp.ones((1, 8, 8, 3))).shape
      (1, 8, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        *,
        ndim: int = 2,
        offset_groups: int = 1,
        modulation: Modulation | None = "sigmoid",
        use_weight: bool = True,
        use_bias: bool = True,
        groups: int = 1,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = zeros,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = own_rngs(rngs)
        if not use_weight and in_channels != out_channels:
            raise InputError(
                f"in_channels={in_channels}, out_channels={out_channels}: without a weight both "
                "are the same"
            )
        if in_channels % groups or out_channels % groups or in_channels % offset_groups:
            raise InputError(
                f"groups={groups} and offset_groups={offset_groups} must divide "
                f"in_channels={in_channels}, groups also out_channels={out_channels}"
            )
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.stride = per_axis(stride, ndim, "stride")
        self.dilation = per_axis(dilation, ndim, "dilation")
        self.offset_groups, self.groups = offset_groups, groups
        self.modulation: Modulation | None = modulation
        self.dtype, self.precision = dtype, precision
        taps = math.prod(self.kernel_size)
        shape = (*self.kernel_size, in_channels // groups, out_channels)
        weight = None
        if use_weight:
            drawn = kernel_init(next_key(rngs.params), (taps, *shape[-2:]), param_dtype)
            weight = nnx.Param(drawn.reshape(shape))
        self.weight = weight
        self.bias = initial_bias(use_bias, bias_init, rngs, out_channels, param_dtype)
        self.predicted = offset_groups * taps * (ndim + (modulation is not None))
        self.predict = nnx.Param(
            jnp.zeros((*self.kernel_size, in_channels, self.predicted), param_dtype)
        )
        self.predict_bias = nnx.Param(jnp.zeros((self.predicted,), param_dtype))

    def __call__(self, x: Float[Array, "B *spatial C"]) -> Float[Array, "B *outputs C_out"]:
        """Predict offsets and mask from ``x``, and return the convolution of ``x`` with them."""
        ndim, taps = len(self.kernel_size), math.prod(self.kernel_size)
        dtype = x.dtype if self.dtype is None else self.dtype
        x = x.astype(dtype)
        found = box_conv(
            x,
            self.predict[...].astype(dtype),
            self.stride,
            self.dilation,
            precision=precision_name(self.precision),
        )
        found = found + self.predict_bias[...].astype(dtype).reshape((1,) * (ndim + 1) + (-1,))
        found = found.reshape(*found.shape[:-1], self.offset_groups, taps, -1)
        has_mask = self.modulation is not None
        return deform_conv(
            x,
            None if self.weight is None else self.weight[...].astype(dtype),
            found[..., :ndim],
            mask=found[..., ndim] if has_mask else None,
            modulation="plain" if self.modulation is None else self.modulation,
            bias=None if self.bias is None else self.bias[...].astype(dtype),
            kernel_size=self.kernel_size,
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
            precision=self.precision,
        )


class FocalConv(CheckedModule):
    """Focal convolution: add voxels next to important voxels, then convolve onto all of them.

    A submanifold convolution predicts the importance. See :func:`voxax.nn.functional.focal_conv`.

    Args:
      in_channels, out_channels: numbers of channels.
      kernel_size: kernel size of both convolutions, an integer or one per axis.
      ndim: number of spatial axes.
      threshold: a voxel or a tap is important if its importance exceeds this number.
      capacity: static rows of the result. None takes one of a few standard sizes in eager calls,
        and K + 1 times the input's under ``jax.jit``, with K taps.
      use_bias, param_dtype, kernel_init, precision, rngs: as in :class:`SpatiallySparseConv`.

    Attributes:
      weight: ``[K, C_in, C_out]``, with K taps.
      bias: ``[C_out]`` or None.
      predict, predict_bias: parameters of the convolution that predicts importance,
        ``[K, C_in, K]`` and ``[K]``.

    Source: Chen et al., "Focal Sparse Convolutional Networks for 3D Object Detection", CVPR 2022.

    Examples:
      >>> conv = modules.FocalConv(4, 8, rngs=nnx.Rngs(0))
      >>> conv(voxels).num_channels
      8
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        *,
        ndim: int = 3,
        threshold: float = 0.5,
        capacity: int | None = None,
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ):
        rngs = own_rngs(rngs)
        self.kernel_size = per_axis(kernel_size, ndim, "kernel_size")
        self.threshold, self.precision = float(threshold), precision
        self.capacity = static(capacity)
        taps = math.prod(self.kernel_size)
        shapes = ((taps, in_channels, out_channels), (taps, in_channels, taps))
        weight, predict = (
            kernel_init(next_key(rngs.params), shape, param_dtype) for shape in shapes
        )
        self.weight, self.predict = nnx.Param(weight), nnx.Param(predict)
        self.predict_bias = nnx.Param(jnp.zeros((taps,), param_dtype))
        self.bias = nnx.Param(jnp.zeros((out_channels,), param_dtype)) if use_bias else None

    def importance(self, voxels: Voxels) -> jax.Array:
        """Predict the importance of each voxel's taps, ``float[capacity, K]`` in (0, 1)."""
        scores = spatially_sparse_conv(
            voxels,
            self.predict[...],
            self.kernel_size,
            bias=self.predict_bias[...],
            precision=self.precision,
        )
        return jax.nn.sigmoid(scores.features)

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return the input voxels and new voxels near important ones, ``out_channels`` channels."""
        return focal_conv(
            voxels,
            self.weight[...],
            self.importance(voxels),
            self.kernel_size,
            bias=None if self.bias is None else self.bias[...],
            threshold=self.threshold,
            capacity=self.capacity,
            precision=self.precision,
        )
