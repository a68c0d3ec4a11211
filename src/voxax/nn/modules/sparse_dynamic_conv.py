"""Sparse convolution modules whose kernel size each voxel chooses, given or learned."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec, Voxels
from voxax.geometry.kernel_spec import per_axis
from voxax.nn.functional import sparse_dynamic_conv
from voxax.nn.functional.sparse_dynamic_conv import DynamicMethod
from voxax.nn.modules.conv import Initializer, check_input, own_ndim, static_requests
from voxax.nn.modules.initializers import he_normal
from voxax.tuning import Request


class SparseDynamicConv(nnx.Module):
    """:func:`voxax.nn.functional.sparse_dynamic_conv` with its weight and, if asked, its choices.

    With ``learn_size`` a linear head reads each voxel's size, 1 to ``kernel_size``, from its
    features. Sizes are whole in training too, so the numbers are those of evaluation; their
    gradient is that of the ramp between whole sizes, taken at both of its ends: half of what one
    size more would change plus half of what one size less would. In evaluation mode
    (``module.eval()``) pairs beyond a size do not exist, and time follows those that do.

    With ``bank`` > 1 a second head mixes as many weights, by softmax (Chen et al., "Dynamic
    Convolution: Attention over Convolution Kernels", CVPR 2020; there the features of a whole
    image decide, here those of a voxel).

    Args:
      in_channels, out_channels: channels.
      kernel_size: the largest size, an integer.
      stride, dilation: integers, or one per axis; heads need stride 1.
      ndim: spatial axes, 3 unless the class says otherwise.
      learn_size: give the module a size head.
      bank: number of weights.
      use_bias, dtype, param_dtype, kernel_init, bias_init, precision, fwd_algo, bwd_algo, rngs: as
        in :class:`SpatiallySparseConv`.
      method: as of the function.
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
        bank: int = 1,
        use_bias: bool = True,
        fwd_algo: Request = None,
        bwd_algo: Request = None,
        method: DynamicMethod = "auto",
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Initializer = he_normal,
        bias_init: Initializer = jax.nn.initializers.zeros,
        precision: Any = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if bank < 1:
            raise InputError(f"bank={bank} must be at least 1")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.ndim = own_ndim(self, ndim)
        steps = per_axis(stride, self.ndim, "stride")
        if (learn_size or bank > 1) and any(s != 1 for s in steps):
            raise InputError(
                f"stride={stride}: heads read the output's own voxels, so learn_size and bank need "
                "stride 1; give size= and mixture= for strided outputs when calling"
            )
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.kernel_size, self.dtype = operator.index(kernel_size), dtype
        self.deterministic = False
        self.options: dict[str, Any] = {
            "kernel_size": self.kernel_size,
            "stride": steps,
            "dilation": per_axis(dilation, self.ndim, "dilation"),
            "method": method,
            "precision": precision,
            **static_requests("dense", fwd_algo=fwd_algo, bwd_algo=bwd_algo),
        }
        taps = KernelSpec.make(self.ndim, self.kernel_size).num_offsets
        shape = (taps, in_channels, out_channels)
        weights = [kernel_init(rngs.params(), shape, param_dtype) for _ in range(bank)]
        self.weight = nnx.Param(weights[0] if bank == 1 else jnp.stack(weights))
        self.bias = (
            nnx.Param(bias_init(rngs.params(), (out_channels,), param_dtype)) if use_bias else None
        )

        def head(features: int) -> nnx.Linear:
            # Zero: every voxel starts with the middle size, and with equal shares.
            return nnx.Linear(
                in_channels, features, kernel_init=jax.nn.initializers.zeros, dtype=dtype,
                param_dtype=param_dtype, precision=precision, rngs=rngs,
            )  # fmt: skip

        self.size_head = head(1) if learn_size else None
        self.mixture_head = head(bank) if bank > 1 else None

    def sizes(self, voxels: Voxels) -> jax.Array:
        """``float[capacity]``, whole: the learned size of each voxel, with a gradient.

        Raises:
          InputError: the module has no size head.
        """
        if self.size_head is None:
            raise InputError("this module has no size head: make it with learn_size=True")
        check_input(self, voxels)
        clean = jnp.where(voxels.geometry.valid[:, None], voxels.features, 0)
        raw = self.size_head(clean)[:, 0]
        size = 1 + (self.kernel_size - 1) * jax.nn.sigmoid(raw)
        return size + jax.lax.stop_gradient(jnp.round(size) - size)

    def __call__(
        self,
        voxels: Voxels,
        size: jax.Array | int | None = None,
        mask: jax.Array | None = None,
        mixture: jax.Array | None = None,
    ) -> Voxels:
        """Convolve; a ``size`` or ``mixture`` given here takes the place of the head's.

        A ``size`` of floats is soft in training and rounded down in evaluation.
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
    """:class:`SparseDynamicConv` on two axes."""

    NDIM = 2


class SparseDynamicConv3d(SparseDynamicConv):
    """:class:`SparseDynamicConv` on three axes."""

    NDIM = 3
