"""Normalization modules for Voxels and Points, which ignore padding rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry.dtypes import accumulator
from voxax.geometry.halo import split_axis
from voxax.nn.arguments import check_channels, static
from voxax.nn.functional import (
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from voxax.nn.functional.batch_norm import batch_norm
from voxax.nn.functional.normalization import (
    FeatureRows,
    Rows,
    Scenes,
    with_cleared_features,
)
from voxax.nn.modules.constructor import CheckedModule
from voxax.nn.modules.sparse_convs import filled


class BatchNorm(CheckedModule):
    """Batch normalization over the valid rows.

    Training takes the statistics of the valid rows and updates the running averages. Evaluation
    (``model.eval()``) uses the running averages. Padding rows have no influence. A batch without
    voxels does not change the averages.

    Args:
      num_features: number of channels C of the features ``[capacity, C]``.
      momentum: weight of the old running average, in [0, 1].
      epsilon: added to the variance.
      axis_name: mapped axis (or axes) over which devices share their statistics; None shares none.
        Devices are weighted by number of voxels, so the statistics are those of the whole batch.
      param_dtype: dtype of scale and bias. The running averages use it too, but never less than
        float32, because a variance can overflow a smaller type.
      use_running_average: start in evaluation mode.
      rngs: not used; every module accepts it.

    Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.

    Examples:
      >>> norm = modules.BatchNorm(4)
      >>> y = norm(voxels)  # updates the running averages
      >>> norm.eval()
      >>> norm(voxels).num_channels
      4
    """

    def __init__(
        self,
        num_features: int,
        *,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        axis_name: str | tuple[str, ...] | None = None,
        param_dtype: Any = jnp.float32,
        use_running_average: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        del rngs  # nothing random; accepted so that all modules are built alike
        self.scale = nnx.Param(filled((num_features,), 1, param_dtype))
        self.bias = nnx.Param(filled((num_features,), 0, param_dtype))
        self.mean = nnx.BatchStat(filled((num_features,), 0, accumulator(param_dtype)))
        self.var = nnx.BatchStat(filled((num_features,), 1, accumulator(param_dtype)))
        self.num_features = num_features
        self.momentum, self.epsilon, self.axis_name = momentum, epsilon, static(axis_name)
        self.use_running_average = use_running_average

    def __call__(
        self, voxels: Rows, *, residual: jax.Array | None = None, relu: bool = False
    ) -> Rows:
        """Normalize the features, add ``residual [capacity, C]``, and apply ReLU if ``relu``."""
        check_channels(self, self.num_features, voxels)
        training = not self.use_running_average
        if training:
            _check_shared(self.axis_name, voxels)
        made = batch_norm(
            voxels.features,
            voxels.valid,
            self.mean[...],
            self.var[...],
            self.scale[...],
            self.bias[...],
            training=training,
            momentum=self.momentum,
            epsilon=self.epsilon,
            axis_name=self.axis_name,
            residual=residual,
            relu=relu,
        )
        if training:
            # With an index, flax asks tracers for a sharding that they do not have, which is slow.
            self.mean.set_value(made.mean)
            self.var.set_value(made.variance)
        return with_cleared_features(voxels, made.features)


class _Affine(CheckedModule):
    """Base of norms with learned scale and bias. Arguments as for :class:`LayerNorm`."""

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        del rngs  # nothing random; accepted so that all modules are built alike
        self.scale = nnx.Param(filled((num_features,), 1, param_dtype)) if use_scale else None
        self.bias = nnx.Param(filled((num_features,), 0, param_dtype)) if use_bias else None
        self.num_features, self.epsilon = num_features, epsilon

    def _values(self, voxels: FeatureRows) -> tuple[jax.Array | None, jax.Array | None]:
        """Check the channels of ``voxels`` and return scale and bias."""
        check_channels(self, self.num_features, voxels)
        scale, bias = (None if p is None else p[...] for p in (self.scale, self.bias))
        return scale, bias


class LayerNorm(_Affine):
    """Layer normalization: each voxel gets mean 0 and variance 1 over its channels.

    See :func:`voxax.nn.functional.layer_norm`.

    Args:
      num_features: number of channels C.
      epsilon: added to the variance.
      use_scale, use_bias: whether to learn a scale and a bias for each channel.
      param_dtype: dtype of scale and bias.
      rngs: not used; every module accepts it.

    Examples:
      >>> modules.LayerNorm(4)(voxels).num_channels
      4
    """

    def __call__(self, voxels: Rows) -> Rows:
        return layer_norm(voxels, *self._values(voxels), self.epsilon)


class RMSNorm(_Affine):
    """RMS normalization: each voxel gets root mean square 1 over its channels.

    See :func:`voxax.nn.functional.rms_norm`. Arguments as for :class:`LayerNorm`, without a bias.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        options = {"epsilon": epsilon, "use_scale": use_scale, "param_dtype": param_dtype}
        super().__init__(num_features, use_bias=False, rngs=rngs, **options)

    def __call__(self, voxels: Rows) -> Rows:
        return rms_norm(voxels, self._values(voxels)[0], self.epsilon)


class InstanceNorm(_Affine):
    """Instance normalization: each channel gets mean 0 and variance 1 over the voxels of a scene.

    Training and evaluation compute the same. Arguments as for :class:`LayerNorm`. See
    :func:`voxax.nn.functional.instance_norm`.
    """

    def __call__(self, voxels: Scenes) -> Scenes:
        return instance_norm(voxels, *self._values(voxels), self.epsilon)


class GroupNorm(_Affine):
    """Group normalization: each group of channels gets mean 0, variance 1 over a scene's voxels.

    Args:
      num_features: number of channels C.
      num_groups: number of groups; it must divide ``num_features``.
      epsilon, use_scale, use_bias, param_dtype, rngs: as for :class:`LayerNorm`.

    See :func:`voxax.nn.functional.group_norm`.
    """

    def __init__(
        self,
        num_features: int,
        num_groups: int = 32,
        *,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if num_groups < 1 or num_features % num_groups:
            raise InputError(f"num_groups={num_groups} must divide num_features={num_features}")
        options = {"epsilon": epsilon, "use_scale": use_scale, "param_dtype": param_dtype}
        super().__init__(num_features, use_bias=use_bias, rngs=rngs, **options)
        self.num_groups = num_groups

    def __call__(self, voxels: Scenes) -> Scenes:
        return group_norm(voxels, self.num_groups, *self._values(voxels), self.epsilon)


def _check_shared(names: str | tuple[str, ...] | None, voxels: FeatureRows) -> None:
    """Raise :class:`voxax.InputError` if ``voxels`` are split over a mesh axis not in ``names``."""
    axis = split_axis(voxels)
    if axis is not None and axis not in ((names,) if isinstance(names, str) else names or ()):
        raise InputError(
            f"BatchNorm with axis_name={names!r} on one shard of a scene that is split over "
            f"{axis!r} would normalize each shard by itself: call "
            f"voxax.parallel.synchronize(model, {axis!r}) first"
        )
