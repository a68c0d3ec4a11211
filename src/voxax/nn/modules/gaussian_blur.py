"""A Gaussian blur whose widths a linear layer computes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.nn.functional.gaussian_blur import gaussian_blur
from voxax.products.convolve import precision_name


class GaussianBlur(nnx.Module):
    """:func:`voxax.nn.functional.gaussian_blur` with widths that each position computes.

    A linear layer reads them from the channels: ``sigma = largest * sigmoid(x @ predict + bias)``.
    It starts at zero, so every position starts with half of the largest width.

    Args:
      channels: C.
      largest: the largest sigma, in cells, above 0.
      radius: where the Gaussian is cut off; None is four times ``largest``, rounded up.
      ndim: spatial axes, 1 to 3.
      isotropic: one width for all axes; False has one for each.
      normalize_edges: as for the function.
      dtype: to compute in; None is that of input and parameters.
      param_dtype: of the parameters.
      precision: of the linear layer; None keeps the input's full precision.

    Attributes:
      predict: ``[C, 1]``, or ``[C, D]``; predict_bias: ``[1]``, or ``[D]``.

    Raises:
      InputError: a largest width that is not above 0.
    """

    def __init__(
        self,
        channels: int,
        largest: float = 2.0,
        *,
        radius: int | None = None,
        ndim: int = 2,
        isotropic: bool = True,
        normalize_edges: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
    ):
        if not largest > 0:
            raise InputError(f"largest={largest}: the largest width must be above 0")
        self.largest, self.normalize_edges = float(largest), normalize_edges
        self.radius = math.ceil(4 * self.largest) if radius is None else radius
        self.dtype, self.precision = dtype, precision
        widths = 1 if isotropic else ndim
        self.predict = nnx.Param(jnp.zeros((channels, widths), param_dtype))
        self.predict_bias = nnx.Param(jnp.zeros((widths,), param_dtype))

    def sigma(self, x: jax.Array) -> jax.Array:
        """``float[B, *spatial, 1 or D]``, in cells: the width of each position."""
        dtype = x.dtype if self.dtype is None else self.dtype
        raw = jnp.matmul(
            x.astype(dtype),
            self.predict[...].astype(dtype),
            precision=precision_name(self.precision),
        )
        raw = raw + self.predict_bias[...].astype(dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        return self.largest * jax.nn.sigmoid(raw)

    def __call__(self, x: jax.Array, sigma: jax.Array | float | None = None) -> jax.Array:
        """``[B, *spatial, C]``; a ``sigma`` given here takes the place of the layer's."""
        dtype = x.dtype if self.dtype is None else self.dtype
        return gaussian_blur(
            x.astype(dtype),
            self.sigma(x) if sigma is None else sigma,
            radius=self.radius,
            normalize_edges=self.normalize_edges,
        )
