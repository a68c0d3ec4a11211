"""A stride that is a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.nn.functional.spectral_stride import spectral_stride


class SpectralStride(nnx.Module):
    """:func:`voxax.nn.functional.spectral_stride` with the stride as its parameter (DiffStride).

    Args:
      stride: at the start, a number or one per axis, 1 or more.
      ndim: spatial axes, 1 to 3.
      smoothness, outputs, precision: as for the function.
      param_dtype: of the parameter.

    Attributes:
      stride: ``[D]``.
    """

    def __init__(
        self,
        stride: float | Sequence[float] = 2.0,
        *,
        ndim: int = 2,
        smoothness: float = 4.0,
        outputs: int | Sequence[int] | None = None,
        precision: jax.lax.PrecisionLike = None,
        param_dtype: Any = jnp.float32,
    ):
        steps = tuple(stride) if isinstance(stride, Sequence) else (stride,) * ndim
        if len(steps) != ndim or min(steps) < 1:
            raise InputError(f"stride={stride}: expected {ndim} numbers of 1 or more, or one")
        self.smoothness, self.precision = float(smoothness), precision
        self.outputs = tuple(outputs) if isinstance(outputs, Sequence) else outputs
        self.stride = nnx.Param(jnp.asarray(steps, param_dtype))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``[B, *outputs, C]``, and how many outputs of each axis there are."""
        return spectral_stride(
            x,
            self.stride[...],
            smoothness=self.smoothness,
            outputs=self.outputs,
            precision=self.precision,
        )
