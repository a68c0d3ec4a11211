"""Attention between voxels: in patches along a curve, in windows, in scenes, and to another set.

The channels of the input are ``C`` channels of queries, then ``C`` of keys, then ``C`` of values.
Each of these parts consists of ``num_heads`` heads, one after the other. The modules in
:mod:`voxax.nn.modules` add the linear layers before and after.

Logits and softmax are computed in at least float32. A row attends only to rows of the same scene.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp

from voxax._array_types import Array, Float, Int, Num
from voxax._native.operators import FRACTIONS, differentiable_operator
from voxax.errors import InputError, check_known
from voxax.geometry import CurveOrder, Voxels, Windows, curve_order, cut_patches
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.dtypes import wide_fraction
from voxax.geometry.halo import refuse_shard
from voxax.geometry.patches import Fill, Patches, check_length
from voxax.geometry.regroup import gather_rows
from voxax.nn.functional.attention_tiles import (
    TILE,
    Logits,
    Side,
    attend_across_blocks,
    attend_in_patches,
)
from voxax.nn.functional.flash_attention import (
    ROWS,
    AttentionAlgorithm,
    by_cudnn,
    by_splash,
    choose,
)
from voxax.nn.functional.normalization import with_cleared_features
from voxax.products.convolution import precision_name

SerialOrder = Literal["z", "z-trans", "hilbert", "hilbert-trans"]
"""Orders of Point Transformer V3: Z-order, Hilbert, and both with the first two axes exchanged."""


class Tokens(NamedTuple):
    """Rows of features without coordinates, such as decoder queries or words, in B scenes.

    Attributes:
      features: ``[batch_size, T, C]``, T rows for each scene.
      count: ``int32[batch_size]``; the first ``count`` rows of a scene exist. None means all T.
    """

    features: Num[Array, "B T C"]
    count: Int[Array, " B"] | None = None

    @property
    def valid(self) -> jax.Array:
        """Which rows exist, ``bool[batch_size, T]``."""
        scenes, length, _ = self.features.shape
        slot = jnp.arange(length, dtype=jnp.int32)[None, :]
        if self.count is None:
            return jnp.broadcast_to(slot >= 0, (scenes, length))
        # The minimum comes first, because a 64-bit count could wrap around in int32.
        return slot < jnp.minimum(self.count, length).astype(jnp.int32)[:, None]

    def map(self, fn: Callable[[jax.Array], jax.Array]) -> Tokens:
        """Apply ``fn`` to the features ``[batch_size, T, C]``; rows that do not exist are zero."""
        # Rows are also cleared before: NaN times a zero cotangent would reach the weights in fn.
        features = fn(self._cleared(self.features))
        return self._replace(features=self._cleared(features))

    def _cleared(self, features: jax.Array) -> jax.Array:
        return jnp.where(self.valid[..., None], features, jnp.zeros((), features.dtype))


Queries = TypeVar("Queries", Voxels, Tokens)


def serial_order(voxels: Voxels, order: SerialOrder) -> CurveOrder:
    """Return the order of the rows along one of the curves of Point Transformer V3.

    The curve of each scene begins in its lowest corner and fills the smallest cube of ``2**n``
    cells per axis that contains the scene. All attention blocks on the same voxels can share the
    result.

    Args:
      voxels: ``capacity`` rows; only their coordinates matter.
      order: ``"z"``, ``"z-trans"``, ``"hilbert"`` or ``"hilbert-trans"``.

    Returns:
      The order and its inverse, each ``int32[capacity]``, as in :func:`voxax.curve_order`.

    Raises:
      InputError: ``order`` is unknown.

    Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.
    """
    check_known("order", order, get_args(SerialOrder))
    curve, _, transposed = order.partition("-")
    name: Literal["morton", "hilbert"] = "morton" if curve == "z" else "hilbert"
    return curve_order(voxels, name, transposed=bool(transposed), fitted=True)


@checked_operator
def serialized_attention(
    voxels: Voxels,
    num_heads: int,
    patch_size: int = 1024,
    order: SerialOrder | CurveOrder = "hilbert",
    *,
    fill: Fill = "overlap",
    scale: float | None = None,
    table: Float[Array, "D offsets H"] | None = None,
    precision: jax.lax.PrecisionLike = None,
    algorithm: AttentionAlgorithm | None = None,
) -> Voxels:
    """Let voxels attend to each other inside patches of fixed length along a space-filling curve.

    Args:
      voxels: Voxels with ``3 * C`` channels: query, key, value.
      num_heads: number of heads H, which divides C.
      patch_size: number of rows of a patch. Unless ``fill="cycle"``, a larger number than the
        capacity is reduced to the capacity rounded up to a multiple of 128.
      order: name of the curve, or an order of the rows from :func:`voxax.curve_order`.
      fill: which rows fill the free slots of a scene's last patch: ``"overlap"``, ``"cycle"`` or
        ``"short"``; see :func:`voxax.cut_patches`.
      scale: factor on the products of queries and keys; None is ``1 / sqrt(C / H)``.
      table: relative position bias, ``[D, 2 * reach + 1, H]`` for D spatial axes, or None. For each
        axis, the offset in cells (query minus key), clipped to ``-reach`` to ``reach``, selects the
        entry to add to the logits.
      precision: precision of the products; None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).
      algorithm: ``"tiles"`` (ordinary JAX operations; derivatives of any order), ``"cudnn"`` (GPU),
        ``"splash"`` (TPU). None takes one of the last two for half precision, if this process has
        such a device and the algorithm can run with these arguments; else ``"tiles"``.

    Returns:
      Voxels with C channels in the input's dtype.

    Raises:
      InputError: channels, heads, patch size or table do not match, the order is unknown, the
        algorithm cannot run with these arguments, the features are integers, or the voxels are one
        shard of a split scene.

    Source: Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.

    Examples:
      >>> packed = voxels.map(lambda x: jnp.tile(x, (1, 3)))  # queries, keys, values
      >>> functional.serialized_attention(packed, num_heads=2, patch_size=64).num_channels
      4
    """
    how = _logits(voxels, num_heads, 3, scale, table, precision)
    along = serial_order(voxels, order) if isinstance(order, str) else order
    if fill != "cycle":  # with "cycle" the number of repeats depends on the length
        check_length("patch_size", patch_size)
        patch_size = min(patch_size, -(-voxels.capacity // ROWS) * ROWS)
    cut = cut_patches(voxels, patch_size, along, fill=fill)
    chosen = choose(algorithm, _head(voxels, num_heads, 3), how, patch_size)
    if chosen == "tiles" and table is None and voxels.features.dtype.name in FRACTIONS:
        options = {"heads": num_heads, "scale": how.scale, "precision": how.precision}
        (features,) = _in_patches(voxels.features, *cut, **options)
        return with_cleared_features(voxels, features)
    given = voxels.features, voxels.coords, cut, None, how
    return voxels.replace_features(_attend(*given, num_heads, chosen, beside=0))


def _in_patches_portable(
    packed: jax.Array,
    rows: jax.Array,
    place: jax.Array,
    *,
    heads: int,
    scale: float,
    precision: str,
) -> tuple[jax.Array, ...]:
    none = jnp.zeros((packed.shape[0], 0), jnp.int32)  # coordinates are not read
    how = Logits(scale, precision, None, TILE)
    return (_attend(packed, none, Patches(rows, place), None, how, heads, "tiles", beside=0),)


def _in_patches_value(
    call: Any, packed: Any, rows: Any, place: Any, *, heads: int, scale: float, precision: str
) -> Any:
    del precision
    result = jax.ShapeDtypeStruct((packed.shape[0], packed.shape[1] // 3), packed.dtype)
    options = {"sizes": (heads,), "numbers": (scale,)}
    return call("attention", (result,), packed, rows, place, **options)


def _in_patches_gradients(
    call: Any, dy: Any, *given: Any, moves: Any, heads: int, scale: float, precision: str
) -> Any:
    del moves, precision
    packed, rows, place, _ = given
    result = jax.ShapeDtypeStruct(packed.shape, packed.dtype)
    options = {"sizes": (heads,), "numbers": (scale,)}
    return call("attention_gradients", (result,), dy, packed, rows, place, **options)


_in_patches = differentiable_operator(
    "voxax_attention", _in_patches_value, _in_patches_portable, _in_patches_gradients
)


@checked_operator
def window_attention(
    voxels: Voxels,
    num_heads: int,
    windows: Windows,
    *,
    scale: float | None = None,
    table: Float[Array, "D offsets H"] | None = None,
    precision: jax.lax.PrecisionLike = None,
) -> Voxels:
    """Let each voxel attend to all voxels of the same window.

    Args:
      voxels: Voxels with ``3 * C`` channels: query, key, value.
      num_heads: number of heads H, which divides C.
      windows: from :func:`voxax.cubic_windows` or :func:`voxax.cylindrical_windows`, for these
        voxels. This is not checked: windows of other voxels of the same capacity give wrong
        results.
      scale, table, precision: as in :func:`serialized_attention`: factor on the products, relative
        position bias ``[D, 2 * reach + 1, H]`` or None, and precision of the products.

    Returns:
      Voxels with C channels in the input's dtype.

    Raises:
      InputError: channels, heads or table do not match, the windows have another capacity, the
        features are integers, or the voxels are one shard of a split scene.

    Source: Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    ICCV 2021.
    """
    how = _logits(voxels, num_heads, 3, scale, table, precision)
    if windows.number.shape[0] != voxels.capacity:
        raise InputError(
            f"windows of {windows.number.shape[0]} rows for voxels of capacity {voxels.capacity}: "
            "make them from these voxels"
        )
    most = windows.most_rows
    block = _block_size(voxels.capacity)
    beside = None
    if most is not None:
        # The rows of a window are consecutive, so a block needs only the blocks next to it.
        block = min(block, max(most, 64))
        beside = -(-(most - 1) // block)
        beside = beside if beside <= 2 else None
    cut = cut_patches(voxels, block, windows.order, fill="short")
    given = voxels.features, voxels.coords, cut, windows.number, how
    return voxels.replace_features(_attend(*given, num_heads, "tiles", beside))


@checked_operator
def scene_attention(
    voxels: Voxels,
    num_heads: int,
    *,
    scale: float | None = None,
    table: Float[Array, "D offsets H"] | None = None,
    precision: jax.lax.PrecisionLike = None,
    algorithm: AttentionAlgorithm | None = None,
) -> Voxels:
    """Let each voxel attend to all voxels of the same scene.

    Time grows with the square of the number of voxels; memory does not.

    Args:
      voxels: Voxels with ``3 * C`` channels: query, key, value.
      num_heads: number of heads H, which divides C.
      scale, table, precision, algorithm: as in :func:`serialized_attention`. Algorithm ``"cudnn"``
        needs memory for ``batch_size * capacity`` rows.

    Returns:
      Voxels with C channels in the input's dtype.

    Raises:
      InputError: as in :func:`serialized_attention`.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    """
    how = _logits(voxels, num_heads, 3, scale, table, precision)
    block = _block_size(voxels.capacity)
    chosen = choose(algorithm, _head(voxels, num_heads, 3), how, block)
    whole = chosen == "cudnn"  # cuDNN has no groups
    cut = cut_patches(voxels, voxels.capacity if whole else block, fill="short")
    given = voxels.features, voxels.coords, cut, voxels.coords[:, 0], how
    beside = 0 if whole else None
    return voxels.replace_features(_attend(*given, num_heads, chosen, beside))


@checked_operator
def cross_attention(
    query: Queries,
    key_value: Voxels | Tokens,
    num_heads: int,
    *,
    scale: float | None = None,
    precision: jax.lax.PrecisionLike = None,
    algorithm: AttentionAlgorithm | None = None,
) -> Queries:
    """Let each row attend to the rows of another set that belong to the same scene.

    Args:
      query: Voxels, or :class:`Tokens`, with C channels.
      key_value: the other set, Voxels or Tokens with ``2 * C`` channels: key, value.
      num_heads: number of heads H, which divides C.
      scale, precision: factor and precision of the products, as in :func:`serialized_attention`.
      algorithm: ``"tiles"``, ``"splash"`` or None, as in :func:`serialized_attention`.

    Returns:
      The rows of ``query`` with C channels in its dtype. Rows of scenes without keys are zero.

    Raises:
      InputError: channels, heads or numbers of scenes do not match, the features are integers,
        tokens or their count have another shape, or voxels are one shard of a split scene.

    Source: Vaswani et al., "Attention Is All You Need", NeurIPS 2017.
    """
    for rows in (query, key_value):
        if isinstance(rows, Tokens):
            check_tokens(rows)
    how = _logits(query, num_heads, 1, scale, None, precision)
    channels = query.features.shape[-1]
    if key_value.features.shape[-1] != 2 * channels:
        raise InputError(
            f"keys and values of {key_value.features.shape[-1]} channels for queries of "
            f"{channels}: expected {2 * channels}, keys and values side by side"
        )
    scenes = _batch_size(query), _batch_size(key_value)
    if scenes[0] != scenes[1]:
        raise InputError(f"queries of {scenes[0]} scenes and keys of {scenes[1]}")
    block = _block_size(max(_capacity(query), _capacity(key_value)))
    chosen = choose(algorithm, _head(query, num_heads, 1), how, block)
    if chosen == "cudnn":
        if algorithm is not None:
            raise InputError("algorithm='cudnn' has no cross attention: take 'tiles'")
        chosen = "tiles"
    asked, mine, cut = _blocks(query, block)
    held, theirs, _ = _blocks(key_value, block)
    out = _cross(asked, mine, held, theirs, how, num_heads, chosen)
    if isinstance(query, Voxels):
        assert cut is not None
        return query.replace_features(_returned(cut, out))
    length = query.features.shape[1]
    return query._replace(features=out.reshape(scenes[0], -1, channels)[:, :length])


def check_tokens(tokens: Tokens) -> None:
    """Raise :class:`voxax.InputError` if features or count of ``tokens`` have a wrong shape.

    Args:
      tokens: features ``[batch_size, T, C]``, count ``int[batch_size]`` or None.
    """
    shape = tuple(tokens.features.shape)
    if len(shape) != 3:
        raise InputError(f"tokens of shape {list(shape)}: give [batch_size, T, C]")
    if tokens.count is None:
        return
    count = jnp.asarray(tokens.count)
    if count.shape != shape[:1] or not jnp.issubdtype(count.dtype, jnp.integer):
        raise InputError(
            f"count of {count.dtype}{list(count.shape)} for tokens of shape {list(shape)}: give "
            f"int[{shape[0]}], how many of each scene exist"
        )


def _logits(
    rows: Voxels | Tokens,
    num_heads: int,
    parts: int,
    scale: float | None,
    table: jax.Array | None,
    precision: jax.lax.PrecisionLike,
) -> Logits:
    """Check the arguments that all kinds of attention share; return the rule for the logits.

    ``parts`` is 3 if the channels of ``rows`` are queries, keys and values, and 1 for queries
    alone. ``scale``, ``table`` and ``precision`` are as in :class:`Logits`; a scale of None is
    ``1 / sqrt(channels of a head)``.
    """
    features = rows.features
    channels = features.shape[-1]
    if num_heads < 1 or channels % (parts * num_heads):
        kinds = "queries, keys and values" if parts == 3 else "queries"
        raise InputError(
            f"{channels} channels of {kinds} for {num_heads} heads: expected a multiple of "
            f"{parts * max(num_heads, 1)}"
        )
    if not jnp.issubdtype(features.dtype, jnp.floating):
        raise InputError(f"attention of {features.dtype} features: convert them to floats")
    if isinstance(rows, Voxels):
        refuse_shard(rows, "attention")
    if table is not None and isinstance(rows, Voxels):
        ndim = rows.geometry.ndim
        fits = table.ndim == 3 and table.shape[::2] == (ndim, num_heads) and table.shape[1] % 2
        if not fits:
            raise InputError(
                f"relative table of shape {tuple(table.shape)}: expected [{ndim}, 2 * reach + 1, "
                f"{num_heads}]"
            )
    width = channels // (parts * num_heads)
    factor = 1 / math.sqrt(width) if scale is None else float(scale)
    return Logits(factor, precision_name(precision), table, TILE)


@functools.partial(jax.jit, static_argnames=("num_heads", "chosen", "beside"))
def _attend(
    features: jax.Array,
    coords: jax.Array,
    cut: Patches,
    group: jax.Array | None,
    how: Logits,
    num_heads: int,
    chosen: AttentionAlgorithm,
    beside: int | None,
) -> jax.Array:
    """Return the result of attention for each voxel, ``[capacity, C]``.

    A voxel attends to the voxels of its group.

    Args:
      features: queries, keys and values of the voxels side by side, ``[capacity, 3 * C]``.
      coords: coordinates of the voxels.
      cut: patches of the voxels.
      group: ``int32[capacity]``, the group of each voxel. None makes each patch a group.
      how: the rule for the logits.
      num_heads: number of heads.
      chosen: name of the algorithm.
      beside: how many patches before a patch, and as many after it, can hold more voxels of the
        groups in this patch. None if this is unknown; then all patches are searched.
    """
    sides = functools.partial(_sides, features, coords, group=group, num_heads=num_heads, how=how)
    query, key, value = sides(cut.rows)
    if beside is None:
        return _returned(cut, _across(query, key, value, how, chosen))
    if beside:
        _, key, value = sides(_beside(coords, cut.rows, beside))
    in_tiles = functools.partial(attend_in_patches, one_group=group is None)
    within = {"cudnn": by_cudnn, "splash": by_splash, "tiles": in_tiles}
    return _returned(cut, within[chosen](query, key, value, how))


@functools.partial(jax.jit, static_argnames=("num_heads", "chosen"))
def _cross(
    asked: jax.Array,
    mine: jax.Array,
    held: jax.Array,
    theirs: jax.Array,
    how: Logits,
    num_heads: int,
    chosen: AttentionAlgorithm,
) -> jax.Array:
    """Return attention of queries to keys of another set, ``[P, L, H, d]``.

    There are H heads of d channels. The queries ``asked [P, L, C]`` are P patches of L slots; the
    keys and values ``held [Q, L, 2 * C]`` are Q patches. ``mine [P, L]`` are the groups of the
    queries, ``theirs [Q, L]`` those of the keys. A query attends only to keys of its group.
    ``how`` is the rule for the logits, and ``chosen`` is the name of the algorithm.
    """
    (vectors,) = _parts(asked, num_heads, 1)
    key, value = _parts(held.astype(asked.dtype), num_heads, 2)
    return _across(Side(vectors, mine), Side(key, theirs), value, how, chosen)


def _across(
    query: Side, key: Side, value: jax.Array, how: Logits, chosen: AttentionAlgorithm
) -> jax.Array:
    """Return attention of each query to all keys of its group in any patch, ``[P, L, H, d]``.

    The queries have P patches of L slots, and H heads of d channels. The keys and
    ``value [Q, L, H, d]`` may have another number of patches, Q. ``chosen`` is the algorithm.
    """
    if chosen != "splash":
        return attend_across_blocks(query, key, value, how)
    q, k, v = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), (query, key, value))
    return by_splash(q, k, v, how).reshape(query.vectors.shape)


def _block_size(capacity: int) -> int:
    """Return the rows per block: the smallest power of two >= ``capacity``, from 2 to 1024."""
    most = max(8, min(1024, math.isqrt(TILE)))
    return min(1 << (most.bit_length() - 1), 1 << max(capacity - 1, 1).bit_length())


def _head(rows: Any, num_heads: int, parts: int) -> jax.ShapeDtypeStruct:
    """Return shape ``[H, d]`` and dtype of the queries of one row: H heads of d channels.

    ``rows`` are Voxels or Tokens, whose features are ``parts`` arrays of ``H * d`` channels side by
    side: 3 for queries, keys and values, 1 for queries alone.
    """
    width = rows.features.shape[-1] // (parts * num_heads)
    return jax.ShapeDtypeStruct((num_heads, width), rows.features.dtype)


def _parts(features: jax.Array, num_heads: int, parts: int) -> tuple[jax.Array, ...]:
    """Split ``[P, L, parts * C]`` into ``parts`` arrays ``[P, L, H, C / H]`` with H heads."""
    split = features.reshape(*features.shape[:2], parts, num_heads, -1)
    return tuple(split[:, :, part] for part in range(parts))


def _sides(
    features: jax.Array,
    coords: jax.Array,
    rows: jax.Array,
    *,
    group: jax.Array | None,
    num_heads: int,
    how: Logits,
) -> tuple[Side, Side, jax.Array]:
    """Return queries, keys and values ``[P, L, H, d]`` of the voxels in the slots of patches.

    ``features [capacity, 3 * C]`` has them side by side. Empty slots get group -1 and zeros.

    Args:
      rows: ``int32[P, L]``, the row of the voxel in each slot, or -1.
      group: ``int32[capacity]``, the group of each voxel. None puts all voxels into one group.
    """
    slots = jnp.maximum(rows, 0)
    mine = jnp.where(rows < 0, -1, 0 if group is None else group[slots])
    cells = None if how.table is None else coords[:, 1:][slots]
    query, key, value = _parts(gather_rows(features, rows), num_heads, 3)
    return Side(query, mine, cells), Side(key, mine, cells), value


def _beside(coords: jax.Array, rows: jax.Array, reach: int) -> jax.Array:
    """Return the voxel rows in and near each patch, ``int32[P, n]``, where -1 is an empty slot.

    ``rows int32[P, L]`` are the rows in each patch. The rows near a patch are those in the
    ``reach`` patches before it and the ``reach`` patches after it, so n is
    ``(2 * reach + 1) * L``. Patches that do not exist or are of another scene give -1.
    """
    patch = jnp.arange(rows.shape[0])[:, None] + jnp.arange(-reach, reach + 1)[None, :]
    scene = jnp.where(rows[:, 0] < 0, -1, coords[jnp.maximum(rows[:, 0], 0), 0])
    theirs = scene.at[jnp.where(patch < 0, rows.shape[0], patch)].get(mode="fill", fill_value=-2)
    near = rows.at[patch].get(mode="clip")
    near = jnp.where((theirs == scene[:, None])[..., None], near, -1)
    return near.reshape(rows.shape[0], -1)


def _blocks(rows: Voxels | Tokens, block: int) -> tuple[jax.Array, jax.Array, Patches | None]:
    """Cut the rows of Voxels or Tokens into P blocks; return features, scenes and patches.

    The features are ``[P, block, C]`` and the scenes ``int32[P, block]``, -1 in empty slots. The
    third result is the :class:`Patches` of Voxels, or None for Tokens.
    """
    if isinstance(rows, Voxels):
        refuse_shard(rows, "attention")
        cut = cut_patches(rows, block, fill="short")
        scene = jnp.where(cut.rows < 0, -1, rows.coords[jnp.maximum(cut.rows, 0), 0])
        return gather_rows(rows.features, cut.rows), scene, cut
    scenes, length, channels = rows.features.shape
    added = (0, max(-(-length // block), 1) * block - length)  # at least one block
    group = jnp.where(rows.valid, jnp.arange(scenes, dtype=jnp.int32)[:, None], -1)
    features = jnp.pad(rows.map(lambda f: f).features, ((0, 0), added, (0, 0)))
    group = jnp.pad(group, ((0, 0), added), constant_values=-1)
    return features.reshape(-1, block, channels), group.reshape(-1, block), None


def _returned(cut: Patches, out: jax.Array) -> jax.Array:
    """Move ``out [P, L, H, d]`` from the slots of patches to voxel rows, ``[capacity, H * d]``."""
    return gather_rows(out.reshape(out.shape[0] * out.shape[1], -1), cut.place)


def _batch_size(rows: Voxels | Tokens) -> int:
    return rows.batch_size if isinstance(rows, Voxels) else rows.features.shape[0]


def _capacity(rows: Voxels | Tokens) -> int:
    return rows.capacity if isinstance(rows, Voxels) else rows.features.shape[1]


@checked_operator
def rotary_embedding(
    x: Float[Array, "N H d"],
    positions: Num[Array, "N D"],
    base: float = 10.0,
) -> Float[Array, "N H d"]:
    """Rotate pairs of channels by angles in proportion to the position.

    The dot product of two results depends only on the difference of their positions. The channels
    of each head are split into one part per axis. Channels ``i`` and ``i + m`` of a part with
    ``2 * m`` channels are rotated by ``position * base ** (-i / m)`` radians.

    Args:
      x: ``[N, H, d]``, queries or keys of H heads; ``d`` is a multiple of ``2 * D``.
      positions: ``float[N, D]``, along D axes.
      base: sets the range of frequencies, from 1 down to nearly ``1 / base``.

    Returns:
      ``[N, H, d]`` in the dtype of ``x``, computed in at least float32.

    Raises:
      InputError: shapes do not match, ``x`` has integers, ``d`` cannot be split, or ``base`` is not
        positive.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; along
    the axes of space, "Utonia: Toward One Encoder for All Point Clouds", arXiv 2603.03283.
    """
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"rotary_embedding of {x.dtype}: convert it to floats")
    check_rotary(x.shape[-1], positions.shape[-1], base)
    if x.ndim != 3 or positions.ndim != 2 or x.shape[0] != positions.shape[0]:
        raise InputError(
            f"rotary_embedding of shape {x.shape} at positions of shape {positions.shape}: "
            "expected [N, H, d] and [N, D]"
        )
    return _turned(x, positions, base=float(base))


def check_rotary(channels: int, ndim: int, base: float) -> None:
    """Raise :class:`InputError` unless ``2 * ndim`` divides ``channels`` and base > 0.

    ``channels`` is the number of channels of one head, for :func:`rotary_embedding`.
    """
    if channels % (2 * ndim):
        raise InputError(
            f"a head of {channels} channels cannot be turned along {ndim} axes: give a multiple of "
            f"{2 * ndim} channels"
        )
    if base <= 0:
        raise InputError(f"base={base} of the rotary embedding must be positive")


@functools.partial(jax.jit, static_argnames="base")
def _turned(x: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    rows, heads, channels = x.shape
    ndim = positions.shape[1]
    half = channels // (2 * ndim)
    wide = wide_fraction(x.dtype)
    rates = jnp.asarray([base ** (-i / half) for i in range(half)], wide)
    angles = positions.astype(wide)[:, :, None] * rates[None, None, :]  # [N, D, half]
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    parts = x.astype(wide).reshape(rows, heads, ndim, 2, half)
    first, second = parts[:, :, :, 0], parts[:, :, :, 1]
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=3)
    return turned.reshape(x.shape).astype(x.dtype)
