"""Point Transformer V3: a U-Net with attention in patches along space-filling curves.

Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024. Sonata (Wu et al.,
"Sonata: Self-Supervised Learning of Reliable Point Representations", CVPR 2025) and Concerto (Zhang
et al., "Concerto: Joint 2D-3D Self-Supervised Learning Emerges Spatial Representations", NeurIPS
2025) use the encoder without the decoder.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, Literal, Unpack, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.errors import InputError, check_known
from voxax.geometry import CurveOrder, Voxels
from voxax.geometry.kernel_spec import per_axis
from voxax.geometry.patches import Fill
from voxax.interop.sources import (
    REFERENCE,
    TORCH,
    Setting,
    Source,
    norm_settings,
    renaming,
)
from voxax.interop.spconv import Spconv
from voxax.models.options import check_integers
from voxax.nn import functional
from voxax.nn.arguments import static
from voxax.nn.functional.attention import SerialOrder
from voxax.nn.functional.flash_attention import AttentionAlgorithm
from voxax.nn.modules import (
    GELU,
    MLP,
    BatchNorm,
    ConditionalPosition,
    DropPath,
    GridPool,
    GridUnpool,
    LayerNorm,
    Linear,
    Remat,
    Sequential,
    SerializedAttention,
    SerialOrders,
    SubMConv,
    relative_reach,
)
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import AlgorithmOptions


class PTv3Block(Module):
    """Transformer block: adds convolutional position encoding, attention and MLP to the features.

    Args:
      channels: number of channels of the input and the output.
      num_heads, patch_size: number of attention heads, and number of rows of an attention patch.
      mlp_ratio: hidden channels of the MLP, as a multiple of ``channels``.
      drop_path: drop rate of the attention branch and of the MLP branch.
      dropout: dropout rate on the outputs of linear layers in these two branches.
      legacy: whether the next block's position encoding reads only the MLP's output, as in the
        networks whose weights were published first.
      attention: more arguments of :class:`voxax.nn.modules.SerializedAttention`.
      conv: more arguments of the position encoding's convolution.
      dtype, param_dtype: as in :class:`voxax.nn.modules.SpatiallySparseConv`.
      rngs: streams for initial weights and dropout; None uses a default stream with a fixed seed.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        patch_size: int = 1024,
        *,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        dropout: float = 0.0,
        legacy: bool = False,
        attention: dict[str, Any] | None = None,
        conv: dict[str, Any] | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = own_rngs(rngs)
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.cpe = ConditionalPosition(channels, **{**kinds, **(conv or {})})
        self.norm1 = LayerNorm(channels, param_dtype=param_dtype)
        self.attn = SerializedAttention(
            channels, num_heads, patch_size, dropout=dropout, **{**kinds, **(attention or {})}
        )
        self.norm2 = LayerNorm(channels, param_dtype=param_dtype)
        hidden = int(channels * mlp_ratio)
        if hidden < 1:
            raise InputError(f"mlp_ratio={mlp_ratio} leaves {hidden} of {channels} channels")
        self.mlp = MLP(channels, hidden, dropout=dropout, **kinds)
        self.drop_path = DropPath(drop_path, rngs=rngs if drop_path else None)
        self.legacy = legacy

    def __call__(
        self,
        voxels: Voxels,
        order: SerialOrder | CurveOrder = "hilbert",
        positional: Voxels | None = None,
        positions: jax.Array | None = None,
    ) -> tuple[Voxels, Voxels]:
        """Return the block's output, and the input of the next block's position encoding.

        Args:
          voxels: ``[capacity, C]``.
          order: curve along which the rows are cut into patches: its name, or a ``CurveOrder``.
          positional: input of the position encoding; None is ``voxels``.
          positions: ``float[capacity, D]``, coordinates for the rotary embedding; None takes the
            centers of the voxels.
        """
        voxels = voxels + self.cpe(voxels if positional is None else positional)
        voxels = voxels + self.drop_path(self.attn(self.norm1(voxels), order, positions))
        branch = self.drop_path(self.mlp(self.norm2(voxels)))
        voxels = voxels + branch
        return voxels, branch if self.legacy else voxels


class PTv3Stage(Module):
    """One level of :class:`PTv3`: an optional pooling or unpooling, then transformer blocks.

    Args:
      enter: the pooling or unpooling before the blocks: :class:`voxax.nn.modules.GridPool`,
        :class:`voxax.nn.modules.GridUnpool` or None.
      blocks: the blocks.
      orders: curves that order the rows; the blocks use them in turn.
      positional_skip: whether the first block's position encoding reads only the skip connection.
      remat: whether to recompute the blocks in the backward pass, which saves memory.
    """

    def __init__(
        self,
        enter: GridPool | GridUnpool | None,
        blocks: Sequence[PTv3Block],
        orders: SerialOrders,
        *,
        positional_skip: bool = False,
        remat: bool = False,
    ) -> None:
        self.enter, self.orders = nnx.data(enter), orders
        self.blocks = nnx.List([Remat(block) if remat else block for block in blocks])
        self.positional_skip = positional_skip

    def __call__(
        self, voxels: Voxels, skip: Voxels | None = None, positions: jax.Array | None = None
    ) -> Voxels:
        """Run the pooling or unpooling and the blocks; return Voxels of this level.

        Args:
          voxels: voxels of the previous level.
          skip: ``[capacity, C]``, voxels of the skip connection; needed by an unpooling.
          positions: positions of this level's rows, as in :class:`PTv3Block`.
        """
        positional = voxels
        if isinstance(self.enter, GridUnpool):
            assert skip is not None
            voxels, fine = self.enter(voxels, skip)
            positional = fine if self.positional_skip else voxels
        elif self.enter is not None:
            positional = voxels = self.enter(voxels)
        orders = self.orders(voxels, len(self.blocks))
        for block, order in zip(self.blocks, orders, strict=True):
            voxels, positional = block(voxels, order, positional, positions)
        return voxels


class PTv3(Module):
    """Point Transformer V3, a U-Net of transformer blocks: stem, encoder, decoder, linear head.

    The defaults are those of the base network for segmentation. Curves start in the lowest corner
    of each scene, and poolings group cells from the origin of the lattice. To reproduce the results
    of other implementations, give coordinates that begin at 0 in each scene. A curve has as many
    bits as its scene needs, as in torch-pointcloud. In Pointcept it has as many bits as the batch
    needs, and one more if the largest coordinate is ``2**n - 1``.

    Args:
      in_channels: number of input features.
      out_channels: number of classes; 0 leaves out the head.
      orders: curves that the blocks use in turn.
      shuffle_orders: whether to permute the curves at each level in training.
      strides: stride of each pooling.
      encoder_depths, encoder_channels, encoder_num_heads: blocks, channels and heads of each level.
      decoder_depths, decoder_channels, decoder_num_heads: the same for each decoder level, deepest
        first. ``()`` leaves out the decoder, so that the output is the coarsest level.
      patch_size: number of rows of a patch.
      mlp_ratio: hidden channels of each MLP, as a multiple of its input channels.
      qkv_bias, scale: as in :class:`voxax.nn.modules.SerializedAttention`.
      drop_path: drop rate of the deepest block's branches. In both encoder and decoder the rate
        grows linearly with depth, from 0 at the finest block.
      dropout: dropout rate on the outputs of linear layers in the blocks.
      position: position encoding in addition to the convolutions: ``"none"``; ``"relative"``, by
        learned tables; ``"rotary"``, at the centers of the voxels; or ``"rotary-points"``, as in
        Utonia, at the positions in the first ``ndim`` input features, which poolings average.
      rotary_base: base of both rotary encodings.
      stem: first layer: ``"conv"``, a submanifold convolution of kernel size 5, or ``"linear"``.
      norm: norm of stem, poolings and unpoolings: ``"batch"`` or ``"layer"``. Blocks have layer
        norms.
      norm_epsilon, norm_momentum: epsilon and momentum of this norm.
      positional_skip: whether the first position encoding after an unpooling reads only the skip
        connection, as with the serialized pooling of the first version. False reads the sum
        of skip connection and unpooled features, as in Sonata.
      fill: how the last patch of a scene is filled up, see :func:`voxax.cut_patches`.
      legacy: as in :class:`PTv3Block`; published weights of the first version need it.
      remat: whether to recompute each block in the backward pass, which saves memory.
      algorithm: as in :class:`voxax.nn.modules.SerializedAttention`.
      ndim, dtype, param_dtype: as in :class:`voxax.nn.modules.SpatiallySparseConv`.
      rngs: streams for initial weights and dropout; None uses a default stream with a fixed seed.
      **conv: arguments of every convolution: ``precision``, ``fwd_algo``, ``bwd_algo``,
        ``dgrad_algo``, ``wgrad_algo``.

    Raises:
      InputError: the lengths of lists do not match, a name is unknown, or a size is below 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        orders: Sequence[SerialOrder] = ("z", "z-trans", "hilbert", "hilbert-trans"),
        shuffle_orders: bool = True,
        strides: Sequence[int] = (2, 2, 2, 2),
        encoder_depths: Sequence[int] = (2, 2, 2, 6, 2),
        encoder_channels: Sequence[int] = (32, 64, 128, 256, 512),
        encoder_num_heads: Sequence[int] = (2, 4, 8, 16, 32),
        decoder_depths: Sequence[int] = (2, 2, 2, 2),
        decoder_channels: Sequence[int] = (256, 128, 64, 64),
        decoder_num_heads: Sequence[int] = (16, 8, 4, 4),
        patch_size: int = 1024,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        scale: float | None = None,
        drop_path: float = 0.3,
        dropout: float = 0.0,
        position: Literal["none", "relative", "rotary", "rotary-points"] = "none",
        rotary_base: float = 10.0,
        stem: Literal["conv", "linear"] = "conv",
        norm: Literal["batch", "layer"] = "batch",
        norm_epsilon: float = 1e-3,
        norm_momentum: float = 0.99,
        positional_skip: bool = True,
        fill: Fill = "overlap",
        legacy: bool = False,
        remat: bool = False,
        algorithm: AttentionAlgorithm | None = None,
        ndim: int = 3,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs | None = None,
        **conv: Unpack[AlgorithmOptions],
    ) -> None:
        encoder_depths, encoder_channels = static(encoder_depths), static(encoder_channels)
        decoder_depths, decoder_channels = static(decoder_depths), static(decoder_channels)
        encoder_num_heads, decoder_num_heads = static(encoder_num_heads), static(decoder_num_heads)
        strides = static(strides)
        levels = len(encoder_depths)
        ups = len(decoder_depths)
        _check_lengths(
            levels, encoder_channels=encoder_channels, encoder_num_heads=encoder_num_heads
        )
        _check_lengths(levels - 1, strides=strides)
        up = {"decoder_channels": decoder_channels, "decoder_num_heads": decoder_num_heads}
        _check_lengths(ups, **up)
        if ups and position == "rotary-points":
            raise InputError("position='rotary-points' is that of an encoder: give no decoder")
        if ups not in (0, levels - 1):
            raise InputError(
                f"{ups} decoder levels for {levels} encoder levels: expected {levels - 1}, or none"
            )
        check_integers(0, encoder_depths=encoder_depths, decoder_depths=decoder_depths)
        check_integers(1, encoder_channels=encoder_channels, decoder_channels=decoder_channels)
        for stride in strides:
            per_axis(stride, ndim, "strides")
        for order in orders:
            check_known("order", order, get_args(SerialOrder))
        check_known("fill", fill, get_args(Fill))
        if algorithm is not None:
            check_known("algorithm", algorithm, get_args(AttentionAlgorithm))
        check_known("position", position, ("none", "relative", "rotary", "rotary-points"))
        if position == "rotary-points" and in_channels < ndim:
            raise InputError(
                f"in_channels={in_channels}: the first {ndim} are the positions of the points"
            )
        check_known("stem", stem, ("conv", "linear"))
        check_known("norm", norm, ("batch", "layer"))
        rngs = own_rngs(rngs)
        kinds: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}

        normalized = functools.partial(LayerNorm, epsilon=norm_epsilon, param_dtype=param_dtype)
        if norm == "batch":
            normalized = functools.partial(
                BatchNorm, epsilon=norm_epsilon, momentum=norm_momentum, param_dtype=param_dtype
            )
        after: dict[str, Any] = {"norm": normalized, "activation": GELU(approximate=False)}
        attention = {
            "qkv_bias": qkv_bias,
            "scale": scale,
            "relative_reach": relative_reach(patch_size) if position == "relative" else None,
            "rotary_base": rotary_base if position.startswith("rotary") else None,
            "ndim": ndim,
            "fill": fill,
            "algorithm": algorithm,
        }

        def blocks(channels: int, heads: int, rates: Sequence[float]) -> list[PTv3Block]:
            return [
                PTv3Block(
                    channels,
                    heads,
                    patch_size,
                    mlp_ratio=mlp_ratio,
                    drop_path=rate,
                    dropout=dropout,
                    legacy=legacy,
                    attention=attention,
                    conv={"ndim": ndim, **conv},
                    **kinds,
                )
                for rate in rates
            ]

        def stage(enter: GridPool | GridUnpool | None, *sizes: Any) -> PTv3Stage:
            turns = SerialOrders(orders, shuffle=shuffle_orders, rngs=rngs)
            return PTv3Stage(
                enter, blocks(*sizes), turns, positional_skip=positional_skip, remat=remat
            )

        width = encoder_channels[0]
        embedding = (
            Linear(in_channels, width, **kinds)
            if stem == "linear"
            else SubMConv(in_channels, width, 5, ndim=ndim, use_bias=False, **kinds, **conv)
        )
        self.stem_name, self.norm, self.legacy = stem, norm, legacy
        self.position_channels = ndim if position == "rotary-points" else 0
        self.stem = Sequential(embedding, normalized(width), after["activation"])
        rates = _rates(drop_path, encoder_depths)
        stages = [stage(None, width, encoder_num_heads[0], rates[0])]
        for level in range(1, levels):
            channels = encoder_channels[level]
            pool = GridPool(width, channels, strides[level - 1], **after, **kinds)
            stages.append(stage(pool, channels, encoder_num_heads[level], rates[level]))
            width = channels
        self.down = nnx.List(stages)

        stages = []
        rates = _rates(drop_path, decoder_depths[::-1])[::-1]
        for level, channels in enumerate(decoder_channels):
            skip, stride = encoder_channels[-2 - level], strides[-1 - level]
            unpool = GridUnpool(width, skip, channels, stride, **after, **kinds)
            stages.append(stage(unpool, channels, decoder_num_heads[level], rates[level][::-1]))
            width = channels
        self.up = nnx.List(stages)
        self.head = nnx.data(Linear(width, out_channels, **kinds) if out_channels else None)

    def sources(self) -> dict[str, Source]:
        """Return how Pointcept and torch-pointcloud name and store the weights of this network.

        The result is a dict from a version's name, such as ``pointcept-v1.5.1``, to its ``Source``.
        """
        last = len(self.up) - 1
        whole = self.head is not None

        def decoder(found: re.Match[str]) -> str:  # Pointcept counts levels from the finest
            return f"dec.dec{last - int(found[1])}"

        shared = ((r"(\.blocks\.\d+)\.block\b", r"\1"), (r"\.relative$", ".rpe"))
        pointcept = renaming(
            *shared,
            (r"^stem\.layers\.0$", "embedding.stem." + self.stem_name),
            (r"^stem\.layers\.1$", "embedding.stem.norm"),
            (r"^down\.(\d+)", r"enc.enc\1"),
            (r"^up\.(\d+)", decoder),
            (r"^(enc.*)\.enter\.proj$", r"\1.down.proj"),
            (r"^(enc.*)\.enter\.after\.layers\.0$", r"\1.down.norm.0"),
            (r"^(dec.*)\.enter\.(proj\w*)$", r"\1.up.\2.0"),
            (r"^(dec.*)\.enter\.after(\w*)\.layers\.0$", r"\1.up.proj\2.1"),
            (r"\.blocks\.(\d+)", r".block\1"),
            (r"\.cpe\.conv$", ".cpe.0"),
            (r"\.cpe\.proj$", ".cpe.1"),
            (r"\.cpe\.norm$", ".cpe.2"),
            (r"\.(norm\d)$", r".\1.0"),
            (r"\.mlp\.first$", ".mlp.0.fc1"),
            (r"\.mlp\.second$", ".mlp.0.fc2"),
            *(((r"^(?!head)", "backbone."), (r"^head$", "seg_head")) if whole else ()),
        )
        after = ".norm.module" if self.norm == "batch" else ".norm"
        torch_pointcloud = renaming(
            *shared,
            (r"^stem\.layers\.0$", "stem.stem"),
            (r"^stem\.layers\.1$", "stem" + after),
            (r"^(down.*)\.enter\.", r"\1.downsample."),
            (r"^(up.*)\.enter\.", r"\1.upsample."),
            (r"\.after(\w*)\.layers\.0$", after.replace("norm", r"norm\1")),
            (r"\.cpe\.", ".cpe_"),
            (r"\.mlp\.first$", ".mlp.0"),
            (r"\.mlp\.second$", ".mlp.3"),
            (r"^up\.", "decoder.blocks."),
            (r"^down\.", "blocks."),
            *(((r"^(?=stem|blocks)", "encoder."),) if whole else ()),
        )

        def settings(fill: Fill, norm: tuple[float, float]) -> tuple[Setting, ...]:
            norms = r"^stem\b|\.enter\b"  # the blocks' are layer norms, alike everywhere
            batch = norm_settings(*norm, norms) if self.norm == "batch" else ()
            return (*batch, Setting(r"\.attn$", "fill", fill))

        # Sonata masks tokens while it is trained; Utonia keeps the rates of its rotary embedding.
        unused, own = ("embedding.mask_token",), settings("overlap", REFERENCE)
        if self.position_channels:
            unused += tuple(
                f"enc.enc{level}.block{number}.attn.rope.inv_freq"
                for level, stage in enumerate(self.down)
                for number in range(len(stage.blocks))
            )
        current = {
            "pointcept": Source(Spconv(), pointcept, unused, own),
            "torch-pointcloud": Source(
                Spconv(), torch_pointcloud, settings=settings("cycle", TORCH)
            ),
        }
        if self.norm == "layer":  # the encoders of later networks, released in one form
            return current
        first = {
            "pointcept-v1.5.1": Source(Spconv(), pointcept, settings=own),
            "torch-pointcloud-released": Source(
                Spconv(), torch_pointcloud, settings=settings("cycle", REFERENCE)
            ),
        }
        if self.legacy:
            return {**first, "torch-pointcloud": current["torch-pointcloud"]}
        why = "has the position encoding of the first version: load it into ptv3-base-v1, or with "
        why += "legacy=True"
        return current | {n: dataclasses.replace(s, refusal=why) for n, s in first.items()}

    def levels(self, voxels: Voxels) -> tuple[Voxels, ...]:
        """Return Voxels with the features of each encoder level, the finest level first."""
        points = None
        if channels := self.position_channels:
            points = voxels.map(lambda features: features[:, :channels])
        with jax.named_scope("stem"):
            voxels = self.stem(voxels)
        found = []
        for level, down in enumerate(self.down):
            with jax.named_scope(f"down{level}"):
                if points is not None and down.enter is not None:
                    points = functional.mean_pool(points, down.enter.stride)
                voxels = down(voxels, None, None if points is None else points.features)
            found.append(voxels)
        return tuple(found)

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return Voxels of logits ``[capacity, out_channels]``, at the input's voxels.

        A network without a head returns features instead of logits. A network without a decoder
        returns the voxels of the coarsest level.
        """
        *skips, voxels = self.levels(voxels)
        for level, up in enumerate(self.up):
            with jax.named_scope(f"up{len(self.up) - 1 - level}"):
                voxels = up(voxels, skips.pop())
        with jax.named_scope("head"):
            return voxels if self.head is None else self.head(voxels)


def _check_lengths(levels: int, **lists: Sequence[int]) -> None:
    for name, values in lists.items():
        if len(values) != levels:
            raise InputError(f"{name}={tuple(values)} has {len(values)} entries: expected {levels}")


def _rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """Return a list of drop rates for each level, one rate per block.

    ``depths`` has the number of blocks of each level. Over all blocks of all levels the rates grow
    linearly from 0 to ``last``.
    """
    rates = np.linspace(0, last, sum(depths))
    return [part.tolist() for part in np.split(rates, np.cumsum(depths)[:-1])] if depths else []


# Depths, channels and heads of the encoders that Sonata and Concerto were published with.
_ENCODERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "tiny": ((1, 1, 1, 3, 1), (16, 32, 64, 128, 256), (1, 2, 4, 8, 16)),
    "small": ((2, 2, 2, 6, 2), (32, 64, 128, 256, 512), (2, 4, 8, 16, 32)),
    "base": ((3, 3, 3, 12, 3), (48, 96, 192, 384, 512), (3, 6, 12, 24, 32)),
    "large": ((3, 3, 3, 12, 3), (64, 128, 256, 512, 768), (4, 8, 16, 32, 48)),
}


def PTv3Encoder(in_channels: int = 9, size: str = "base", **options: Any) -> PTv3:
    """Return the encoder of Sonata or Concerto, a :class:`PTv3` without decoder, untrained.

    Sonata has the sizes ``small`` and ``base``, Concerto all four. The output of the network is the
    voxels of the coarsest level.

    Args:
      in_channels: number of input features; 9 for position, color and normal.
      size: size of the encoder: ``tiny``, ``small``, ``base`` or ``large``.
      options: arguments of :class:`PTv3`, which override those of the encoder.

    Raises:
      InputError: an unknown size.
    """
    check_known("size", size, tuple(_ENCODERS))
    depths, channels, heads = _ENCODERS[size]
    given: dict[str, Any] = {
        "encoder_depths": depths,
        "encoder_channels": channels,
        "encoder_num_heads": heads,
        "stem": "linear",
        "norm": "layer",
        "norm_epsilon": 1e-5,
        "positional_skip": False,
        **{f"decoder_{name}": () for name in ("depths", "channels", "num_heads")},
    }
    return PTv3(in_channels, 0, **{**given, **options})
