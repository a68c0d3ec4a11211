"""Gather, multiply, scatter over lists of the pairs that exist, sorted by tap.

Where a map has few of its possible neighbours (LiDAR: 3 to 7 of 27), the other formulations
multiply mostly zeros. Here the lists are walked in blocks, each of one tap: gather the block's
input rows, one dense product, add to the block's output rows. How many blocks there are is
known at run time only; the shapes are static. Within a tap every row occurs once and in
ascending order on both sides, so the same lists serve all three products, and the additions
happen in the same order in every run.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Problem
from voxax.algorithms.rows import outer, times, zeros
from voxax.geometry.dtypes import accumulator, product_dtype


def pair_lists(
    problem: Problem, block: int, a: jax.Array, b: jax.Array, views: dict[str, jax.Array]
) -> jax.Array:
    """``block``: pairs of one step, at most the room that the lists leave behind their end."""
    pairs, starts = views["pairs"], views["pair_starts"]
    wide, narrow = accumulator(a.dtype), product_dtype(a.dtype)
    if problem.product == "wgrad":

        def add_outer(dw: jax.Array, tap: jax.Array, i: jax.Array, o: jax.Array) -> jax.Array:
            return dw.at[tap].add(outer(problem, _rows(a, i), _rows(b, o)))

        dw = zeros(problem.weight_shape, wide, a)
        return _walk(add_outer, dw, pairs, starts, block).astype(narrow)

    forward = problem.product == "forward"
    w = b if forward or problem.kind == "depthwise" else jnp.swapaxes(b, -1, -2)
    shape = (
        (problem.out_capacity, problem.out_channels)
        if forward
        else (problem.in_capacity, problem.in_channels)
    )

    def add(y: jax.Array, tap: jax.Array, i: jax.Array, o: jax.Array) -> jax.Array:
        source, target = (i, o) if forward else (o, i)
        rows = times(problem, _rows(a, source), w[tap])
        # Places behind the tap's last pair point past the end, each at another row.
        absent = shape[0] + jnp.arange(block, dtype=target.dtype)
        return y.at[jnp.where(target < 0, absent, target)].add(
            rows, mode="drop", unique_indices=True, indices_are_sorted=True
        )

    return _walk(add, zeros(shape, wide, a), pairs, starts, block).astype(narrow)


def _rows(x: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of ``x``; zero where the index is -1."""
    if x.shape[0] == 0:
        return jnp.zeros((len(index), x.shape[1]), x.dtype)
    rows = x.at[index].get(mode="clip")
    return jnp.where((index >= 0)[:, None], rows, jnp.zeros((), x.dtype))


def _walk(
    step: Callable[..., jax.Array],
    total: jax.Array,
    pairs: jax.Array,
    starts: jax.Array,
    block: int,
) -> jax.Array:
    """Apply ``step(total, tap, in_rows, out_rows)`` to every block of every tap."""
    blocks = -(-jnp.diff(starts) // block)
    ends = jnp.cumsum(blocks, dtype=jnp.int32)

    def body(index: jax.Array, total: jax.Array) -> jax.Array:
        tap = jnp.sum(ends <= index, dtype=jnp.int32)
        begin = starts[tap] + (index - (ends[tap] - blocks[tap])) * block
        inside = begin + jnp.arange(block, dtype=jnp.int32) < starts[tap + 1]
        i, o = jax.lax.dynamic_slice(pairs, (jnp.int32(0), begin), (2, block))
        return step(total, tap, jnp.where(inside, i, -1), jnp.where(inside, o, -1))

    return jax.lax.fori_loop(jnp.int32(0), ends[-1], body, total)
