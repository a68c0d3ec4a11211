"""A linear layer on every voxel's features."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from voxax.geometry import Voxels
from voxax.nn.modules.initializers import he_normal


class Linear(nnx.Module):
    """``features @ weight + bias``: a convolution of kernel size 1 without a kernel map.

    Args:
      in_channels, out_channels: channels.
      use_bias: add a bias.
      dtype, param_dtype, precision: as in :class:`SpatiallySparseConv`.
      rngs: None means ``nnx.Rngs(0)``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = "highest",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.linear = nnx.Linear(
            in_channels,
            out_channels,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=he_normal,
            rngs=nnx.Rngs(0) if rngs is None else rngs,
        )

    def __call__(self, voxels: Voxels) -> Voxels:
        return voxels.map(self.linear)
