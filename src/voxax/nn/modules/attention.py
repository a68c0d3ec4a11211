"""Attention modules: :mod:`voxax.nn.functional.attention` between learned linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from voxax._array_types import Array, Float
from voxax._native.random import is_plain_key, permutation
from voxax.errors import InputError
from voxax.geometry import CurveOrder, Voxels, cubic_windows, cylindrical_windows
from voxax.geometry.patches import Fill, check_length
from voxax.nn.arguments import check_channels, static
from voxax.nn.functional import (
    Tokens,
    cross_attention,
    rotary_embedding,
    scene_attention,
    serial_order,
    serialized_attention,
    window_attention,
)
from voxax.nn.functional.attention import Queries, SerialOrder, check_rotary, check_tokens
from voxax.nn.functional.flash_attention import AttentionAlgorithm
from voxax.nn.modules.constructor import CheckedModule, own_rngs
from voxax.nn.modules.keys import next_key
from voxax.nn.modules.norm import LayerNorm
from voxax.nn.modules.pointwise import GELU, Dropout, Linear
from voxax.nn.modules.sparse_convs import ConvOptions, SubMConv, dtypes_of


class RelativeTable(CheckedModule):
    """Table of learned attention logits (a relative position bias) by axis, cell offset and head.

    Args:
      num_heads: number of heads H.
      reach: largest offset in cells that has an entry; a larger offset uses the entry of this one.
      ndim: number of spatial axes D.
      param_dtype: dtype of the table.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Attributes:
      weight: the table, ``[D, 2 * reach + 1, H]``.

    Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.
    """

    def __init__(
        self,
        num_heads: int,
        reach: int,
        *,
        ndim: int = 3,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        check_length("relative_reach", reach)
        rngs = own_rngs(rngs)
        shape = (ndim, 2 * reach + 1, num_heads)
        draw = jax.nn.initializers.truncated_normal(0.02)
        self.weight = nnx.Param(draw(next_key(rngs.params), shape, param_dtype))
        self.reach = reach


class HeadOptions(TypedDict, total=False):
    """Keyword arguments common to the attention modules; see :class:`SerializedAttention`."""

    qkv_bias: bool
    scale: float | None
    relative_reach: int | None
    rotary_base: float | None
    ndim: int
    dropout: float
    dtype: Any
    param_dtype: Any
    precision: Any
    rngs: nnx.Rngs | None


class _Heads(CheckedModule):
    """Base class of the attention modules; arguments as for :class:`SerializedAttention`."""

    def __init__(
        self,
        channels: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        scale: float | None = None,
        relative_reach: int | None = None,
        rotary_base: float | None = None,
        ndim: int = 3,
        dropout: float = 0.0,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = "highest",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if num_heads < 1 or channels % num_heads:
            raise InputError(f"num_heads={num_heads} must divide channels={channels}")
        if rotary_base is not None:
            check_rotary(channels // num_heads, ndim, rotary_base)
        rngs = own_rngs(rngs)
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
        self.qkv = Linear(channels, 3 * channels, use_bias=qkv_bias, rngs=rngs, **kinds)
        self.proj = Linear(channels, channels, rngs=rngs, **kinds)
        table = None
        if relative_reach is not None:
            given: dict[str, Any] = {"ndim": ndim, "param_dtype": param_dtype, "rngs": rngs}
            table = RelativeTable(num_heads, relative_reach, **given)
        self.relative = nnx.data(table)
        self.dropout = Dropout(dropout, rngs=rngs if dropout else None)
        self.channels, self.num_heads, self.scale = channels, num_heads, scale
        self.rotary_base, self.precision = rotary_base, precision

    def _packed(self, voxels: Voxels, positions: jax.Array | None = None) -> Voxels:
        """Return Voxels with queries, keys and values of each voxel, ``3 * channels`` in all.

        With ``rotary_base``, queries and keys are rotated by ``positions``, ``[capacity, D]``. None
        takes the centers of the voxels.
        """
        check_channels(self, self.channels, voxels)
        packed = self.qkv(voxels)
        base = self.rotary_base
        if base is None:
            return packed
        positions = voxels.local_positions() if positions is None else positions

        def turn(features: jax.Array) -> jax.Array:
            split = features.reshape(features.shape[0], 3 * self.num_heads, -1)
            turned = rotary_embedding(split[:, : 2 * self.num_heads], positions, base)
            both = jnp.concatenate([turned, split[:, 2 * self.num_heads :]], axis=1)
            return both.reshape(features.shape)

        return packed.map(turn)

    def _options(self) -> dict[str, Any]:
        table = None if self.relative is None else self.relative.weight[...]
        return {"scale": self.scale, "table": table, "precision": self.precision}

    def _mixed(self, attended: Voxels) -> Voxels:
        return self.dropout(self.proj(attended))


class SerializedAttention(_Heads):
    """Attention inside patches of voxels that are neighbors along a space-filling curve.

    See :func:`voxax.nn.functional.serialized_attention`.

    Args:
      channels: number of channels of input and output, a multiple of ``num_heads``.
      num_heads: number of attention heads.
      patch_size: number of rows (voxels) of a patch.
      order: name of the curve; an order that is given in the call replaces it.
      fill: which rows fill the free slots of a scene's last patch, as in the function.
      algorithm: how attention is computed, as in the function.
      qkv_bias: whether to add a bias to queries, keys and values.
      scale: factor on the products of queries and keys; None is ``1 / sqrt(channels / heads)``.
      relative_reach: largest offset in cells, along each axis, for which the module learns logits
        (:class:`RelativeTable`). None learns no table. :func:`relative_reach` returns the value
        of Point Transformer V3.
      rotary_base: base of :func:`voxax.nn.functional.rotary_embedding`, which rotates queries and
        keys by the centers of the voxels, in the unit of ``voxel_size``. None rotates nothing.
      ndim: number of spatial axes.
      dropout: dropout rate on the output, in training.
      dtype, param_dtype, precision: as in :class:`SpatiallySparseConv`.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.

    Examples:
      >>> attention = modules.SerializedAttention(4, 2, patch_size=64, rngs=nnx.Rngs(0))
      >>> attention(voxels).num_channels
      4
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        patch_size: int = 1024,
        *,
        order: SerialOrder = "hilbert",
        fill: Fill = "overlap",
        algorithm: AttentionAlgorithm | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(channels, num_heads, **options)
        check_length("patch_size", patch_size)
        self.patch_size = patch_size
        self.order: SerialOrder = order
        self.fill: Fill = fill
        self.algorithm: AttentionAlgorithm | None = algorithm

    def __call__(
        self,
        voxels: Voxels,
        order: SerialOrder | CurveOrder | None = None,
        positions: Float[Array, "capacity D"] | None = None,
    ) -> Voxels:
        """Return the voxels with the results of attention, ``[capacity, channels]``.

        Args:
          voxels: Voxels with features ``[capacity, channels]``.
          order: name of a curve, or order of the rows; None takes ``order`` of the module.
          positions: ``[capacity, D]`` for ``rotary_base``; None takes the centers of the voxels.
        """
        options = {"fill": self.fill, "algorithm": self.algorithm, **self._options()}
        order = self.order if order is None else order
        packed = self._packed(voxels, positions)
        return self._mixed(
            serialized_attention(packed, self.num_heads, self.patch_size, order, **options)
        )


class WindowAttention(_Heads):
    """Attention among the voxels of each window, a box of cells; see :func:`voxax.cubic_windows`.

    Args:
      channels: number of channels of input and output, a multiple of ``num_heads``.
      num_heads: number of attention heads.
      size, shift: size and shift of the windows in cells, each an integer or one per axis.
      **options: as for :class:`SerializedAttention`.

    Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    ICCV 2021.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        size: int | Sequence[int],
        *,
        shift: int | Sequence[int] = 0,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(channels, num_heads, **options)
        self.size, self.shift = static(size), static(shift)

    def __call__(self, voxels: Voxels) -> Voxels:
        windows = cubic_windows(voxels, self.size, shift=self.shift)
        packed = self._packed(voxels)
        return self._mixed(window_attention(packed, self.num_heads, windows, **self._options()))


class CylinderAttention(_Heads):
    """Attention in windows of cylindrical coordinates; see :func:`voxax.cylindrical_windows`.

    Args:
      channels: number of channels of input and output, a multiple of ``num_heads``.
      num_heads: number of attention heads.
      size: ``(radius, sectors, height)`` of the windows, as in the function.
      center: x and y of the axis of the cylinders.
      shifted: whether to move windows by half their size.
      **options: as for :class:`SerializedAttention`.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        size: tuple[float, int, float],
        *,
        center: Sequence[float] = (0.0, 0.0),
        shifted: bool = False,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(channels, num_heads, **options)
        self.size, self.center, self.shifted = static(size), static(center), shifted

    def __call__(self, voxels: Voxels) -> Voxels:
        windows = cylindrical_windows(voxels, self.size, center=self.center, shifted=self.shifted)
        packed = self._packed(voxels)
        return self._mixed(window_attention(packed, self.num_heads, windows, **self._options()))


class SceneAttention(_Heads):
    """Attention among all voxels of a scene; see :func:`voxax.nn.functional.scene_attention`.

    Args:
      channels: number of channels of input and output, a multiple of ``num_heads``.
      num_heads: number of attention heads.
      algorithm: how attention is computed, as in the function.
      **options: as for :class:`SerializedAttention`.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        *,
        algorithm: AttentionAlgorithm | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(channels, num_heads, **options)
        self.algorithm: AttentionAlgorithm | None = algorithm

    def __call__(self, voxels: Voxels) -> Voxels:
        options = {"algorithm": self.algorithm, **self._options()}
        return self._mixed(scene_attention(self._packed(voxels), self.num_heads, **options))


class CrossAttention(CheckedModule):
    """Attention from one set of rows to another; see :func:`voxax.nn.functional.cross_attention`.

    Args:
      channels: number of channels of queries and output, a multiple of ``num_heads``.
      num_heads: number of attention heads.
      key_channels: number of channels of the rows to attend to; None is ``channels``.
      qkv_bias: whether to add a bias to queries, keys and values.
      scale: factor on the products of queries and keys, as in the function.
      algorithm: how attention is computed, as in the function.
      dtype, param_dtype, precision: as in :class:`SpatiallySparseConv`.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        *,
        key_channels: int | None = None,
        qkv_bias: bool = True,
        scale: float | None = None,
        algorithm: AttentionAlgorithm | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = "highest",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if num_heads < 1 or channels % num_heads:
            raise InputError(f"num_heads={num_heads} must divide channels={channels}")
        rngs = own_rngs(rngs)
        kinds = {"dtype": dtype, "param_dtype": param_dtype, "precision": precision}
        source = channels if key_channels is None else key_channels
        self.query = Linear(channels, channels, use_bias=qkv_bias, rngs=rngs, **kinds)
        self.key_value = Linear(source, 2 * channels, use_bias=qkv_bias, rngs=rngs, **kinds)
        self.proj = Linear(channels, channels, rngs=rngs, **kinds)
        self.num_heads, self.scale, self.precision = num_heads, scale, precision
        self.algorithm: AttentionAlgorithm | None = algorithm

    def __call__(self, query: Queries, key_value: Voxels | Tokens) -> Queries:
        """Return the rows of ``query`` with the results of attention.

        Args:
          query: Voxels, or Tokens ``[batch_size, T, C]`` of T rows per scene.
          key_value: the rows to attend to, Voxels or Tokens with ``key_channels`` channels.

        Raises:
          InputError: channels, numbers of scenes, or shapes of tokens do not match.
        """
        attended = cross_attention(
            _mapped(self.query, query),
            _mapped(self.key_value, key_value),
            self.num_heads,
            scale=self.scale,
            precision=self.precision,
            algorithm=self.algorithm,
        )
        return _mapped(self.proj, attended)


def _mapped(linear: Linear, rows: Any) -> Any:
    if isinstance(rows, Voxels):
        return linear(rows)
    check_tokens(rows)
    channels = rows.features.shape[-1]
    if channels != linear.linear.in_features:
        raise InputError(f"tokens of {channels} channels: expected {linear.linear.in_features}")
    return rows.map(linear.linear)


class ConditionalPosition(CheckedModule):
    """Conditional position encoding: a submanifold convolution, a linear layer and a norm.

    The encoding of a voxel depends on which neighbors it has, and on their features. Add it to the
    features (``voxels + position(voxels)``) before an attention layer that ignores positions.

    Args:
      channels: number of channels of input and output.
      kernel_size: kernel size of the convolution.
      **options: options of the convolution; ``dtype`` and ``param_dtype`` also apply to the linear
        layer, and ``param_dtype`` to the norm.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.

    Source: Chu et al., "Conditional Positional Encodings for Vision Transformers", ICLR 2023; in
    this form, Wu et al., "Point Transformer V3", CVPR 2024.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int] = 3,
        *,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[ConvOptions],
    ) -> None:
        rngs = own_rngs(rngs)
        self.conv = SubMConv(channels, channels, kernel_size, rngs=rngs, **options)
        self.proj = Linear(channels, channels, rngs=rngs, **dtypes_of(options))
        self.norm = LayerNorm(channels, param_dtype=options.get("param_dtype", jnp.float32))

    def __call__(self, voxels: Voxels) -> Voxels:
        return self.norm(self.proj(self.conv(voxels)))


class MLP(CheckedModule):
    """Two linear layers, with GELU (error function) between them and dropout after each.

    Without dropout, large inputs are computed part by part, and again in the backward pass, so that
    the hidden features of all rows never exist at the same time.

    Args:
      channels: number of channels of input and output.
      hidden: number of channels between the layers.
      dropout: dropout rate.
      dtype, param_dtype: as in :class:`SpatiallySparseConv`.
      rngs: keys of the initial weights; None uses a fixed seed, with a new key for every layer.
    """

    PART: ClassVar[int] = 1 << 22  # hidden features of a part: 16 MiB in float32

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        dropout: float = 0.0,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = own_rngs(rngs)
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.first = Linear(channels, hidden, **kinds)
        self.second = Linear(hidden, channels, **kinds)
        self.act = GELU(approximate=False)
        self.dropout = Dropout(dropout, rngs=rngs if dropout else None)
        self.channels, self.hidden = channels, hidden

    def __call__(self, voxels: Voxels) -> Voxels:
        check_channels(self, self.channels, voxels)
        rows = max(1, self.PART // self.hidden)
        if voxels.capacity <= rows or not self._row_by_row():
            hidden = self.dropout(self.act(self.first(voxels)))
            return self.dropout(self.second(hidden))

        @jax.checkpoint
        def part(features: jax.Array) -> jax.Array:
            return self.second.linear(self.act._of(self.first.linear(features)))

        def parts(features: jax.Array) -> jax.Array:
            number = -(-features.shape[0] // rows)
            padded = jnp.pad(features, ((0, number * rows - features.shape[0]), (0, 0)))
            split = padded.reshape(number, rows, -1)
            out = jax.lax.map(part, split)
            return out.reshape(number * rows, -1)[: features.shape[0]]

        return voxels.map(parts)

    def _row_by_row(self) -> bool:
        """Return whether the rows may be computed part by part.

        This needs a dropout rate of 0, and layers whose ``__call__`` is that of the library.
        """
        layers = self.first, self.second, self.act, self.dropout
        if any(_CALLS.get(type(layer)) is not type(layer).__call__ for layer in layers):
            return False
        return not self.dropout.rate


# The methods of the library, saved before user code can replace them.
_CALLS = {kind: kind.__call__ for kind in (Linear, GELU, Dropout)}


class SerialOrders(CheckedModule):
    """Give each attention block an order of the voxels along a curve; block i takes order i mod n.

    Args:
      orders: names of n curves, as in :func:`voxax.nn.functional.serial_order`.
      shuffle: whether each call in training (``model.train()``) permutes the orders.
      deterministic: start in evaluation mode, which does not permute.
      rng_collection: name of the stream of ``rngs`` from which permutations are drawn.
      rngs: keys of the permutations; None uses a fixed seed, with a new key for every module.

    Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.
    """

    def __init__(
        self,
        orders: Sequence[SerialOrder] = ("z", "z-trans", "hilbert", "hilbert-trans"),
        *,
        shuffle: bool = True,
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: nnx.Rngs | None = None,
    ) -> None:
        if not orders:
            raise InputError("orders=() must name at least one order")
        self.orders: tuple[SerialOrder, ...] = tuple(orders)
        self.shuffle, self.deterministic = shuffle, deterministic
        rngs = own_rngs(rngs)
        self.rngs = nnx.data(rngs[rng_collection].fork() if shuffle else None)

    def __call__(self, voxels: Voxels, number: int) -> list[CurveOrder]:
        """Return a list of ``number`` orders of the voxel rows, one for each block of a network."""
        names: list[SerialOrder] = [self.orders[i % len(self.orders)] for i in range(number)]
        if self.rngs is None or self.deterministic:
            return [serial_order(voxels, name) for name in names]
        every = [serial_order(voxels, name) for name in self.orders]
        stacked = jax.tree.map(lambda *arrays: jnp.stack(arrays), *every)
        key = next_key(self.rngs)
        draw = permutation if is_plain_key(key) else jax.random.permutation
        turn = draw(key, len(every))
        return [
            jax.tree.map(lambda x, i=i: x[turn[i % len(every)]], stacked) for i in range(number)
        ]


def relative_reach(patch_size: int) -> int:
    """Return the ``relative_reach``, in cells, that Point Transformer V3 uses for a patch size.

    Args:
      patch_size: number of rows of a patch, an integer.

    Raises:
      InputError: ``patch_size`` is below 1.
    """
    check_length("patch_size", patch_size)
    return int((4 * patch_size) ** (1 / 3) * 2)
