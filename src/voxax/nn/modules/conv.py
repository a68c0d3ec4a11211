"""Convolution modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelMap, KernelSpec, Voxels
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.modules.initializers import he_normal
from voxax.tuning import Request

Initializer = Callable[..., jax.Array]


class SpatiallySparseConv(nnx.Module):
    """Spatially sparse convolution in any number of dimensions.

    Args:
      in_channels, out_channels: channels.
      kernel_size, stride, dilation: integers, or one per axis.
      groups: channel groups; divides both channel numbers.
      ndim: spatial axes; fixes the number of taps where ``kernel_size`` is an integer.
      transposed: needs ``out_voxels`` when called, unless generative.
      generative: output every site that a tap reaches.
      use_bias: add a bias.
      capacity: static rows of a new output set.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo: algorithm requests.
      dtype: computation dtype; None takes the promotion of features and weight.
      param_dtype: dtype the parameters are kept in.
      kernel_init, bias_init: initialisers, called with the weight's shape
        ``[K, C_in/G, C_out]``: fan-in is ``K * C_in / G``.
      precision: see :func:`voxax.nn.functional.spatially_sparse_conv`.
      rngs: None means ``nnx.Rngs(0)``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        *,
        ndim: int = 3,
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
        bias_init: Initializer = jax.nn.initializers.zeros,
        precision: jax.lax.PrecisionLike = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if in_channels % groups or out_channels % groups:
            raise InputError(
                f"groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        rngs = nnx.Rngs(0) if rngs is None else rngs
        spec = KernelSpec.make(ndim, kernel_size, stride, dilation, transposed, generative)
        taps, c_in = spec.num_offsets, in_channels // groups
        weight = kernel_init(rngs.params(), (taps, c_in, out_channels), param_dtype)
        if groups > 1:
            weight = weight.reshape(taps, c_in, groups, out_channels // groups).swapaxes(1, 2)
        self.weight = nnx.Param(weight)
        self.bias = (
            nnx.Param(bias_init(rngs.params(), (out_channels,), param_dtype)) if use_bias else None
        )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation
        self.groups, self.ndim, self.capacity = groups, ndim, capacity
        self.transposed, self.generative = transposed, generative
        self.algorithms: dict[str, Any] = {
            "fwd_algo": fwd_algo,
            "bwd_algo": bwd_algo,
            "dgrad_algo": dgrad_algo,
            "wgrad_algo": wgrad_algo,
        }
        self.dtype, self.precision = dtype, precision

    def __call__(
        self,
        voxels: Voxels,
        out_voxels: Voxels | None = None,
        *,
        kernel_map: KernelMap | None = None,
    ) -> Voxels:
        """Convolve; ``out_voxels`` gives the target of a transposed convolution."""
        if voxels.geometry.ndim != self.ndim:
            raise InputError(
                f"{type(self).__name__} has ndim={self.ndim}, the voxels are "
                f"{voxels.geometry.ndim}-D"
            )
        if voxels.num_channels != self.in_channels:
            raise InputError(
                f"{type(self).__name__} expects {self.in_channels} channels, the voxels have "
                f"{voxels.num_channels}"
            )
        weight, bias = self.weight[...], None if self.bias is None else self.bias[...]
        if self.dtype is not None:
            weight = weight.astype(self.dtype)
            voxels = voxels.map(lambda f: f.astype(self.dtype))
        shape: dict[str, Any] = {"kernel_map": kernel_map}
        if kernel_map is None:
            shape = {
                "stride": self.stride,
                "dilation": self.dilation,
                "transposed": self.transposed,
                "generative": self.generative,
                "out_voxels": out_voxels,
                "capacity": self.capacity,
            }
        return spatially_sparse_conv(
            voxels,
            weight,
            self.kernel_size,
            bias=bias,
            groups=self.groups,
            precision=self.precision,
            **shape,
            **self.algorithms,
        )


class SparseConv2d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on two axes; submanifold at stride 1."""

    def __init__(self, in_channels: int, out_channels: int, *args: Any, **options: Any) -> None:
        super().__init__(in_channels, out_channels, *args, ndim=2, **options)


class SparseConv3d(SpatiallySparseConv):
    """:class:`SpatiallySparseConv` on three axes; submanifold at stride 1.

    Users of spconv: its ``SparseConv3d`` also creates output voxels around the input at
    stride 1. Here that is ``generative=True``.
    """

    def __init__(self, in_channels: int, out_channels: int, *args: Any, **options: Any) -> None:
        super().__init__(in_channels, out_channels, *args, ndim=3, **options)


class SubMConv3d(SparseConv3d):
    """Submanifold convolution on three axes: the output voxels are the input's (stride 1).

    Source: Graham, Engelcke, van der Maaten, "3D Semantic Segmentation with Submanifold
    Sparse Convolutional Networks", CVPR 2018.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        dilation: int | Sequence[int] = 1,
        **options: Any,
    ) -> None:
        if clash := {"stride", "transposed", "generative"} & set(options):
            raise InputError(
                f"SubMConv3d keeps the voxels, so it takes no {', '.join(sorted(clash))}: use "
                "SparseConv3d"
            )
        super().__init__(in_channels, out_channels, kernel_size, 1, dilation, **options)
