"""Modules that act on each row of features: activations, linear layers, dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Points, Voxels
from voxax.geometry.dtypes import fraction_dtype
from voxax.geometry.row_operations import as_dtype, relu
from voxax.nn.arguments import check_channels, refuse_arrays
from voxax.nn.functional import dropout
from voxax.nn.functional.normalization import Scenes, with_cleared_features
from voxax.nn.functional.pointwise import DropoutMode, activate, check_dropout, linear, takes
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.keys import HostKeys, next_key
from voxax.nn.modules.sparse_convs import filled, he_normal, zeros
from voxax.products.convolution import precision_name


@dataclasses.dataclass(frozen=True)
class _Named:
    """A function of ``jax.nn``, stored by name so that copies and pickles compare equal."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.name == "relu":
            return relu(x)
        return getattr(jax.nn, self.name)(x, **dict(self.options))

    @property
    def operator(self) -> str:
        """The function's name as an argument of :func:`voxax.nn.functional.pointwise.activate`."""
        if self.name == "gelu":
            return "gelu_tanh" if dict(self.options).get("approximate", True) else "gelu"
        return {"swish": "silu"}.get(self.name, self.name)


RELU = _Named("relu")


class Activation(CheckedModule):
    """Apply ``fn`` to the features ``[capacity, C]``; padding stays zero.

    float16 features are computed in float32, because the square of a feature above 255 overflows
    float16 and gives a NaN derivative.

    Args:
      fn: function that maps an array ``[capacity, C]`` to one of the same shape, such as
        ``jax.nn.relu6``.
    """

    def __init__(self, fn: Callable[[jax.Array], jax.Array]) -> None:
        name = getattr(fn, "__name__", "")
        self.fn = _Named(name) if getattr(jax.nn, name, None) is fn else fn

    def __call__(self, voxels: Voxels) -> Voxels:
        refuse_arrays(self, voxels)
        name = self.fn.operator if isinstance(self.fn, _Named) else ""
        if isinstance(voxels, Voxels | Points) and takes(name, voxels.features.dtype):
            features = activate(voxels.features, voxels.valid, name)
            return with_cleared_features(voxels, features)
        return voxels.map(self._of)

    def _of(self, x: jax.Array) -> jax.Array:
        if x.dtype != jnp.float16:
            return self.fn(x)
        return self.fn(x.astype(jnp.float32)).astype(x.dtype)


class _Smooth(Activation):
    """Base of activations with fractional results: integer features become float32 first."""

    def __call__(self, voxels: Voxels) -> Voxels:
        refuse_arrays(self, voxels)
        dtype = fraction_dtype(voxels.features.dtype)
        if voxels.features.dtype != dtype:
            voxels = voxels.map(lambda x: as_dtype(x, dtype))
        return super().__call__(voxels)


class ReLU(Activation):
    """Rectified linear unit, ``max(x, 0)``."""

    def __init__(self) -> None:
        super().__init__(RELU)


class GELU(_Smooth):
    """Gaussian error linear unit.

    Args:
      approximate: whether to use the tanh form. False uses the error function, as PyTorch does by
        default.
    """

    def __init__(self, *, approximate: bool = True) -> None:
        super().__init__(_Named("gelu", (("approximate", approximate),)))


class SiLU(_Smooth):
    """Sigmoid linear unit, ``x * sigmoid(x)``."""

    def __init__(self) -> None:
        super().__init__(jax.nn.silu)


class LeakyReLU(_Smooth):
    """Leaky ReLU: ``x`` where it is positive, else ``0.01 x``."""

    def __init__(self) -> None:
        super().__init__(jax.nn.leaky_relu)


class Linear(CheckedModule):
    """Linear layer, ``features @ weight + bias``.

    It computes a convolution of kernel size 1 and needs no kernel map.

    Args:
      in_channels, out_channels: C_in and C_out; features ``[capacity, C_in]`` become
        ``[capacity, C_out]``.
      use_bias: whether to add a bias.
      dtype, param_dtype, precision: as in :class:`SpatiallySparseConv`.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Raises:
      InputError: the precision is unknown; or, in a call, the number of channels differs.

    Examples:
      >>> modules.Linear(4, 20, rngs=nnx.Rngs(0))(voxels).num_channels
      20
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
        precision_name(precision)  # raises for one that is unknown
        keys: Any = HostKeys(own_rngs(rngs))
        self.linear = nnx.Linear(
            in_channels,
            out_channels,
            use_bias=use_bias,
            dtype=dtype,
            param_dtype=param_dtype,
            precision=precision,
            kernel_init=he_normal,
            bias_init=zeros,
            rngs=keys,
        )

    def __call__(self, voxels: Voxels) -> Voxels:
        check_channels(self, self.linear.in_features, voxels)
        layer = self.linear
        if not isinstance(voxels, Voxels | Points) or not _is_plain(layer):
            return voxels.map(layer)
        kernel, bias = layer.kernel[...], None if layer.bias is None else layer.bias[...]
        dtype = layer.dtype
        if dtype is None:
            dtype = jnp.result_type(voxels.features, kernel, *(() if bias is None else (bias,)))
        features = linear(
            as_dtype(voxels.features, dtype),
            voxels.valid,
            kernel.astype(dtype),
            None if bias is None else bias.astype(dtype),
            precision=layer.precision,
        )
        return with_cleared_features(voxels, features)


def _is_plain(layer: nnx.Linear) -> bool:
    """Return whether the layer is an unmodified ``flax.nnx.Linear``."""
    own = type(layer) is nnx.Linear and nnx.Linear.__call__ is _FLAX_CALL
    return own and layer.dot_general is jax.lax.dot_general and layer.preferred_element_type is None


_FLAX_CALL = nnx.Linear.__call__


class Dropout(CheckedModule):
    """Inverted dropout, turned on by ``model.train()`` and off by ``model.eval()``.

    Args:
      rate: probability of dropping, in [0, 1].
      mode: ``feature``, ``voxel``, ``channel`` or ``scene``, what is dropped together; see
        :func:`voxax.nn.functional.dropout`.
      deterministic: whether to start in evaluation mode, which drops nothing.
      rng_collection: name of the stream of ``rngs`` from which each call draws a new key.
      rngs: source of keys. With None every call in training needs a key or ``nnx.Rngs``.

    Examples:
      >>> drop = modules.Dropout(0.5, rngs=nnx.Rngs(dropout=0))
      >>> drop.eval()
      >>> drop(voxels).num_channels
      4
    """

    def __init__(
        self,
        rate: float = 0.5,
        *,
        mode: DropoutMode = "feature",
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> None:
        check_dropout(rate, mode)
        self.rate, self.deterministic, self.rng_collection = rate, deterministic, rng_collection
        self.mode: DropoutMode = mode
        stream = rngs[rng_collection] if isinstance(rngs, nnx.Rngs) else rngs
        self.rngs = nnx.data(None if stream is None else stream.fork())

    def __call__(
        self, voxels: Scenes, *, rngs: nnx.Rngs | nnx.RngStream | jax.Array | None = None
    ) -> Scenes:
        """Return ``voxels`` with features dropped in training, and all features in evaluation.

        Args:
          voxels: Voxels or Points.
          rngs: streams, or one ``jax.random`` key. None takes the streams of the module.

        Raises:
          InputError: the module is in training mode and there is no source of keys.
        """
        if self.deterministic or self.rate == 0:
            dtype = fraction_dtype(voxels.features.dtype)
            return voxels.replace_features(voxels.features.astype(dtype))
        source = self.rngs if rngs is None else rngs
        if source is None:
            raise InputError(
                "Dropout in training draws random numbers: build it with rngs=nnx.Rngs(seed), "
                "call it with rngs=, or switch it off with model.eval()"
            )
        if isinstance(source, nnx.Rngs):
            source = source[self.rng_collection]
        key = next_key(source) if isinstance(source, nnx.RngStream) else source
        return dropout(voxels, self.rate, key, self.mode)


class DropPath(Dropout):
    """Set the output of a residual branch to zero at random, in training (stochastic depth).

    Args:
      rate: probability of dropping, in [0, 1].
      mode: ``voxel`` drops the branch of single voxels, as Point Transformer V3 does; ``scene``
        drops the branch of whole scenes.
      deterministic, rng_collection, rngs: as for :class:`Dropout`.

    Source: Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
    """

    def __init__(
        self,
        rate: float = 0.1,
        *,
        mode: DropoutMode = "voxel",
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> None:
        super().__init__(
            rate,
            mode=mode,
            deterministic=deterministic,
            rng_collection=rng_collection,
            rngs=rngs,
        )


class LayerScale(CheckedModule):
    """Multiply each channel by a learned factor that begins near zero.

    Args:
      num_features: number of channels.
      initial: initial value of the factors.
      param_dtype: dtype of the factors.
      rngs: not used; every module accepts it.

    Source: Touvron et al., "Going Deeper with Image Transformers", ICCV 2021.
    """

    def __init__(
        self,
        num_features: int,
        initial: float = 1e-5,
        *,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        del rngs  # nothing random; accepted so that all modules are built alike
        self.scale = nnx.Param(filled((num_features,), initial, param_dtype))
        self.num_features = num_features

    def __call__(self, voxels: Voxels) -> Voxels:
        check_channels(self, self.num_features, voxels)
        return voxels.map(lambda f: f * self.scale[...].astype(f.dtype)[None, :])
