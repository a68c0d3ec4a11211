"""Exact softmax attention in tiles: only one tile of logits exists at a time.

A loop runs over heads and blocks of queries. The backward pass computes each step of the loop again
(Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021). The code uses ordinary JAX
operations, so it runs on every platform and has derivatives of any order.

Rows attend to rows of the same group. A negative group marks an empty slot, whose query, key and
value must be finite.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from voxax import _compat
from voxax.geometry.dtypes import wide_fraction

TILE = 1 << 20
"""Number of logits in a tile: 4 MiB in float32, which fits the caches of a CPU."""


class Side(NamedTuple):
    """The queries, or the keys, of attention: P patches of L slots, each with one row or empty.

    Functions on one head of one patch get a Side whose arrays lack the axes P and H.

    Attributes:
      vectors: ``[P, L, H, d]``, queries or keys of H heads with d channels.
      group: ``int32[P, L]``; queries attend to keys of the same group. Empty slots are negative.
      cells: ``int32[P, L, D]``, lattice coordinates, if the logits have a relative table, else
        None.
    """

    vectors: jax.Array
    group: jax.Array
    cells: jax.Array | None = None


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("table",),
    meta_fields=("scale", "precision", "tile"),
)
@dataclasses.dataclass(frozen=True)
class Logits:
    """The rule that computes attention logits from queries and keys.

    Attributes:
      scale: factor on the products; static.
      precision: precision of the products; static.
      table: relative position bias ``[D, 2 * reach + 1, H]`` or None. For each axis, the entry of
        the offset in cells (query minus key), clipped to ``-reach`` to ``reach``, is added.
      tile: number of logits to compute at once; static.
    """

    scale: float
    precision: str
    table: jax.Array | None = None
    tile: int = TILE

    def __call__(self, head: jax.Array, query: Side, key: Side) -> jax.Array:
        """Return the logits ``[Lq, Lk]`` of one patch and head, in at least float32.

        ``query`` and ``key`` have Lq and Lk slots, without the axes P and H. ``head`` is the index
        of the head, for ``table``.
        """
        wide = wide_fraction(query.vectors.dtype)
        # Scaling the query saves a pass over the logits, if the query loses no digits by it.
        early = query.vectors.dtype == wide
        logits = jnp.einsum(
            "qd,kd->qk",
            query.vectors * self.scale if early else query.vectors,
            key.vectors,
            precision=self.precision,
            preferred_element_type=wide,
        )
        logits = logits if early else logits * self.scale
        if self.table is None:
            return logits
        assert query.cells is not None
        assert key.cells is not None
        reach = self.table.shape[1] // 2
        for axis in range(self.table.shape[0]):
            offset = query.cells[:, None, axis] - key.cells[None, :, axis]
            entry = jnp.clip(offset, -reach, reach) + reach
            logits = logits + self.table[axis, :, head].astype(wide)[entry]
        return logits


def attend_in_patches(
    query: Side, key: Side, value: jax.Array, how: Logits, *, one_group: bool = False
) -> jax.Array:
    """Return the result of attention within each patch, ``[P, Lq, H, d]``.

    It is zero for queries without keys. There are H heads of d channels.

    Args:
      query, key: ``P`` patches of ``Lq`` and ``Lk`` slots.
      value: ``[P, Lk, H, d]``.
      how: the rule for the logits.
      one_group: whether all slots of a patch that are not empty belong to one group. The results
        of empty queries are then arbitrary, but finite.
    """
    patches, length, heads, width = query.vectors.shape
    keys = key.group.shape[1]
    block = min(length, max(16, how.tile // keys))
    blocks = -(-length // block)
    at_once = max(1, min(patches * heads, how.tile // (block * keys)))

    @jax.checkpoint
    def tile(head: jax.Array, query: Side, key: Side, value: jax.Array) -> jax.Array:
        logits = how(head, query, key)
        seen = key.group[None, :] >= 0 if one_group else _sees(query, key)
        sums = _sums(logits, _largest(logits, seen), seen, value, how.precision)
        return _normalized(sums).astype(value.dtype)

    def patch(given: tuple[jax.Array, Side, Side, jax.Array]) -> jax.Array:
        head, query, key, value = given
        if blocks == 1:
            return tile(*given)
        parts = jax.tree.map(functools.partial(_split, block=block, blocks=blocks), query)
        out = jax.lax.map(lambda part: tile(head, part, key, value), parts)
        return out.reshape(-1, width)[:length]

    def by_head(vectors: jax.Array) -> jax.Array:
        return vectors.swapaxes(1, 2).reshape(patches * heads, -1, vectors.shape[-1])

    def repeated(side: Side) -> Side:
        rest = jax.tree.map(lambda x: jnp.repeat(x, heads, axis=0), (side.group, side.cells))
        return Side(by_head(side.vectors), *rest)

    head = jnp.tile(jnp.arange(heads, dtype=jnp.int32), patches)
    given = head, repeated(query), repeated(key), by_head(_with_ones(value))
    if at_once == patches * heads:
        out = jax.vmap(patch)(given)
    else:
        out = jax.lax.map(patch, given, batch_size=None if at_once == 1 else at_once)
    return out.reshape(patches, heads, length, width).swapaxes(1, 2)


def attend_across_blocks(query: Side, key: Side, value: jax.Array, how: Logits) -> jax.Array:
    """Return attention to the keys of the same group in all patches, ``[P, Lq, H, d]``.

    Patches of keys that share no group with a patch of queries are skipped. Arguments as in
    :func:`attend_in_patches`, but queries and keys may have different numbers of patches. Groups
    must not decrease along the slots, except for empty slots.
    """
    length, heads = query.vectors.shape[1:3]
    wide = wide_fraction(query.vectors.dtype)
    spans = _span(key.group)

    def one_head(given: tuple[jax.Array, ...]) -> jax.Array:
        head, queries, keys, values = given
        theirs = Side(keys, *key[1:]), values, *spans

        def block(query: Side) -> jax.Array:
            first, last = _span(query.group)

            def over_keys(step: Callable[..., Any], start: Any) -> Any:
                @jax.checkpoint
                def visit(carry: Any, block: Any) -> Any:
                    *block, low, high = block
                    meets = (low <= last) & (high >= first)
                    return jax.lax.cond(meets, lambda c: step(c, *block), lambda c: c, carry)

                (start,) = _compat.vary_alike(query.vectors, start)[1:]
                return jax.lax.scan(lambda c, block: (visit(c, block), None), start, theirs)[0]

            def greater(carry: jax.Array, key: Side, value: jax.Array) -> jax.Array:
                del value
                return jnp.maximum(carry, _largest(how(head, query, key), _sees(query, key)))

            def added(carry: jax.Array, key: Side, value: jax.Array) -> jax.Array:
                logits, seen = how(head, query, key), _sees(query, key)
                return carry + _sums(logits, largest, seen, value, how.precision)

            # The largest logit only keeps exp in range; the result does not depend on it. A first
            # loop finds it, so the sums are linear in the blocks and the backward pass keeps none.
            largest = over_keys(greater, jnp.full((length, 1), _lowest(wide)))
            sums = over_keys(added, jnp.zeros((length, values.shape[-1]), wide))
            return _normalized(sums).astype(values.dtype)

        return jax.lax.map(block, Side(queries, *query[1:]))

    given = (x.transpose(2, 0, 1, 3) for x in (query.vectors, key.vectors, _with_ones(value)))
    out = jax.lax.map(one_head, (jnp.arange(heads, dtype=jnp.int32), *given))
    return out.transpose(1, 2, 0, 3)


def _lowest(wide: Any) -> jax.Array:
    # Finite, so that no difference of two is NaN.
    return jnp.asarray(float(jnp.finfo(wide).min) / 2, wide)


def _with_ones(value: jax.Array) -> jax.Array:
    """Append a column of ones to ``value [..., d]``.

    In a weighted sum of the rows, this column becomes the sum of the weights.
    """
    return jnp.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, 1)], constant_values=1)


def _sees(query: Side, key: Side) -> jax.Array:
    """Return ``bool[Lq, Lk]``: whether each query of a patch attends to each key.

    It does if both are of the same group and their slots are not empty.
    """
    mine, theirs = query.group[:, None], key.group[None, :]
    return (mine == theirs) & (mine >= 0)


def _largest(logits: jax.Array, seen: jax.Array) -> jax.Array:
    """Return each query's largest logit, ``[Lq, 1]``, over the keys for which ``seen`` is True.

    ``seen`` is ``bool[Lq, Lk]``. A query that sees no key gets a very low number.
    """
    logits = jax.lax.stop_gradient(logits)
    return jnp.max(jnp.where(seen, logits, _lowest(logits.dtype)), axis=1, keepdims=True)


def _sums(
    logits: jax.Array, largest: jax.Array, seen: jax.Array, value: jax.Array, precision: str
) -> jax.Array:
    """Return ``[Lq, d + 1]``: sums over seen keys of ``exp(logit - largest)`` times ``value``.

    ``value`` is ``[Lk, d + 1]``, as :func:`_with_ones` returns it. ``seen [Lq, Lk]`` is True for
    the keys to which a query attends.
    """
    # Select before exp, because an infinite weight would reach the gradient as 0 * inf.
    weights = jnp.exp(jnp.where(seen, logits - largest, _lowest(logits.dtype)))
    return jnp.einsum(
        "qk,kd->qd",
        weights.astype(value.dtype),
        value,
        precision=precision,
        preferred_element_type=logits.dtype,
    )


def _normalized(sums: jax.Array) -> jax.Array:
    """Divide the first d columns of ``sums [Lq, d + 1]`` by the last; 0 where the last is 0."""
    weighted, total = sums[:, :-1], sums[:, -1:]
    some = total > 0
    return jnp.where(some, weighted / jnp.where(some, total, 1), 0)


def _span(group: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the lowest and the highest group in the slots ``[..., L]``, two arrays ``[...]``.

    Empty slots, whose group is negative, are ignored. If all slots are empty, the lowest is the
    largest int32 and the highest is negative.
    """
    none = jnp.iinfo(jnp.int32).max
    low = jnp.min(jnp.where(group < 0, none, group), axis=-1)
    return low, jnp.max(group, axis=-1)


def _split(x: jax.Array, block: int, blocks: int) -> jax.Array:
    """Pad ``x [L, ...]`` with zero rows at its end, and reshape to ``[blocks, block, ...]``."""
    padding = [(0, block * blocks - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, padding).reshape(blocks, block, *x.shape[1:])
