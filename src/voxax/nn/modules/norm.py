"""Normalisation modules that do not see padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.geometry import Voxels
from voxax.nn.functional import masked_moments, normalize


class BatchNorm(nnx.Module):
    """Batch normalisation over the voxels that exist.

    In training the statistics are those of the valid rows, and running averages are
    updated; in evaluation (``model.eval()``) the running averages are used. Padding rows
    have no influence, whatever they hold, and a batch without voxels leaves the averages.

    Args:
      num_features: channels.
      momentum: weight of the old running average.
      epsilon: added to the variance.
      axis_name: mapped axis over which statistics are shared between devices.
      param_dtype: dtype of scale, bias and averages.
      use_running_average: evaluation mode from the start.

    Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
    """

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        axis_name: str | None = None,
        param_dtype: Any = jnp.float32,
        use_running_average: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        del rngs  # nothing random; accepted so that all modules are built alike
        # From NumPy: jnp.ones would compile a program for every size.
        ones, zeros = np.ones(num_features), np.zeros(num_features)
        self.scale = nnx.Param(jnp.asarray(ones, param_dtype))
        self.bias = nnx.Param(jnp.asarray(zeros, param_dtype))
        self.mean = nnx.BatchStat(jnp.asarray(zeros, param_dtype))
        self.var = nnx.BatchStat(jnp.asarray(ones, param_dtype))
        self.momentum, self.epsilon, self.axis_name = momentum, epsilon, axis_name
        self.use_running_average = use_running_average

    def __call__(self, voxels: Voxels) -> Voxels:
        if self.use_running_average:
            mean, var = self.mean[...], self.var[...]
        else:
            mean, var, number = masked_moments(voxels.features, voxels.valid, self.axis_name)
            self._update(mean, var, number)
        return normalize(voxels, mean, var, self.scale[...], self.bias[...], self.epsilon)

    def _update(self, mean: jax.Array, var: jax.Array, number: jax.Array) -> None:
        kept = jnp.where(number > 0, self.momentum, 1.0)
        for average, value in ((self.mean, mean), (self.var, var)):
            old = average[...]
            new = kept * old + (1 - kept) * jax.lax.stop_gradient(value)
            average[...] = new.astype(old.dtype)
