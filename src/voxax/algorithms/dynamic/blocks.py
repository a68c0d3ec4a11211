"""The loop that strategies share: blocks of output positions, each with one product.

A block gathers the taps of its positions into ``[block, taps * C]`` and multiplies once. How many
taps is decided block by block, while the program runs: one compiled branch for each size, taken by
the largest size in the block. Taps that a position of the block does not have read a row of zeros,
so what lies there (a NaN, say) does not matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from voxax.algorithms.base import Problem
from voxax.algorithms.dynamic.grid import Grid, grid_of, ordered, unordered
from voxax.algorithms.rows import options, zeros
from voxax.geometry.dtypes import accumulator, product_dtype

Segments = Sequence[tuple[int, int, int | None]]
"""``(first block, block behind the last, size)``; size None: found while running."""


def run(
    problem: Problem,
    a: jax.Array,
    b: jax.Array,
    sizes: jax.Array,
    order: jax.Array | None,
    block: int,
    segments: Callable[[int], Segments] = lambda blocks: ((0, blocks, None),),
) -> jax.Array:
    """Any of the three products; operands as :class:`voxax.algorithms.base.Apply`.

    Args:
      problem, a, b: the product.
      sizes: ``int32[M]``.
      order: ``int32[M]``, which output position each row of the blocks is; None: their own order.
      block: positions in a block.
      segments: from the number of blocks to :data:`Segments`.
    """
    grid = grid_of(problem)
    block = max(1, min(block, grid.positions))
    rows = _Rows(grid, sizes, order, block)
    body = {"forward": _forward, "wgrad": _wgrad, "dgrad": _dgrad}[problem.product]
    return body(problem, grid, rows, a, b, segments(rows.blocks))


class _Rows:
    """Positions in blocks: where they are centred, and their sizes; 0 behind the last."""

    def __init__(self, grid: Grid, sizes: jax.Array, order: jax.Array | None, block: int):
        base, sizes = grid.base(), jnp.clip(sizes, 0, grid.largest)
        if order is not None:
            base, sizes = base[order], sizes[order]
        self.count, self.block = grid.positions, block
        self.blocks = -(-self.count // block)
        self.order = order
        self.base, self.sizes = self.split(base), self.split(sizes)

    def split(self, rows: jax.Array) -> jax.Array:
        """``[M, ...]`` to ``[blocks, block, ...]``, zeros behind the last."""
        missing = self.blocks * self.block - self.count
        rows = jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
        return rows.reshape(self.blocks, self.block, *rows.shape[1:])

    def arrange(self, rows: jax.Array) -> jax.Array:
        """Rows in the order of output positions to blocks."""
        return self.split(rows if self.order is None else rows[self.order])

    def restore(self, blocks: jax.Array) -> jax.Array:
        """The inverse of :meth:`arrange`."""
        rows = blocks.reshape(-1, *blocks.shape[2:])[: self.count]
        if self.order is None:
            return rows
        places = jnp.arange(self.count, dtype=self.order.dtype)
        inverse = jnp.zeros_like(self.order).at[self.order].set(places, unique_indices=True)
        return rows[inverse]


def clear_unused(dy: jax.Array, sizes: jax.Array) -> jax.Array:
    """Zero where a position has no tap: zero times NaN is NaN."""
    return jnp.where((sizes > 0)[..., None], dy, jnp.zeros((), dy.dtype))


def _by_size(grid: Grid, sizes: jax.Array, size: int | None, branch: Callable, *operands):
    """``branch(number of taps)(*operands)`` with as few taps as the block's sizes allow."""
    if size is not None:
        return branch(grid.counts[size])(*operands)
    branches = [branch(count) for count in grid.counts]
    return jax.lax.switch(jnp.max(sizes), branches, *operands)


def _index(grid: Grid, count: int, base: jax.Array, sizes: jax.Array, absent: int) -> jax.Array:
    """``int32[block, count]``: rows of the padded input; ``absent`` for taps out of the size."""
    index = base[:, None] + jnp.asarray(grid.shifts()[None, :count])
    return jnp.where(sizes[:, None] >= jnp.asarray(grid.reach[None, :count]), index, absent)


def _source(grid: Grid, x: jax.Array) -> jax.Array:
    """The padded input's rows, and one of zeros."""
    rows = grid.pad(x).reshape(-1, x.shape[1])
    return jnp.concatenate([rows, jnp.zeros((1, x.shape[1]), x.dtype)])


def _patches(grid: Grid, source: jax.Array, count: int, base, sizes) -> jax.Array:
    index = _index(grid, count, base, sizes, source.shape[0] - 1)
    rows = source.at[index].get(mode="promise_in_bounds")
    return rows.reshape(index.shape[0], count * source.shape[1])


def _forward(problem: Problem, grid: Grid, rows: _Rows, x, w, segments: Segments) -> jax.Array:
    source, flat = _source(grid, x), ordered(grid, w).reshape(-1, w.shape[2])
    wide = options(problem, x.dtype)
    kind = product_dtype(x.dtype)

    def branch(count: int):
        def body(base, sizes):
            if not count:
                return zeros((rows.block, w.shape[2]), kind, source)
            patches = _patches(grid, source, count, base, sizes)
            return jnp.matmul(patches, flat[: count * x.shape[1]], **wide).astype(kind)

        return body

    def one(block, size):
        return _by_size(grid, block[1], size, branch, *block)

    parts = [
        jax.lax.map(
            functools.partial(one, size=size), (rows.base[first:last], rows.sizes[first:last])
        )
        for first, last, size in segments
        if last > first
    ]
    return rows.restore(jnp.concatenate(parts))


def _wgrad(problem: Problem, grid: Grid, rows: _Rows, x, dy, segments: Segments) -> jax.Array:
    source, gradients = _source(grid, x), clear_unused(rows.arrange(dy), rows.sizes)
    wide, channels = options(problem, x.dtype), x.shape[1]
    total = zeros((grid.counts[-1] * channels, dy.shape[1]), accumulator(x.dtype), source)

    def branch(count: int):
        def body(total, base, sizes, gradient):
            if not count:
                return total
            patches = _patches(grid, source, count, base, sizes)
            return total.at[: count * channels].add(jnp.matmul(patches.T, gradient, **wide))

        return body

    for first, last, size in segments:

        def step(total, block, size=size):
            return _by_size(grid, block[1], size, branch, total, *block), None

        blocks = (rows.base, rows.sizes, gradients)
        total, _ = jax.lax.scan(step, total, tuple(part[first:last] for part in blocks))
    weight = total.reshape(-1, channels, dy.shape[1]).astype(product_dtype(x.dtype))
    return unordered(grid, weight)


def _dgrad(problem: Problem, grid: Grid, rows: _Rows, dy, w, segments: Segments) -> jax.Array:
    """Each block adds what it sends to the rows that it would read."""
    gradients, wide = rows.arrange(dy), options(problem, dy.dtype)
    flat = ordered(grid, w).reshape(-1, w.shape[2])
    room = 1
    for extent in grid.padded:
        room *= extent
    total = zeros((room + 1, w.shape[1]), accumulator(dy.dtype), dy)

    def branch(count: int):
        def body(total, base, sizes, gradient):
            if not count:
                return total
            sent = jnp.matmul(gradient, flat[: count * w.shape[1]].T, **wide)
            index = _index(grid, count, base, sizes, room)
            return total.at[index].add(sent.reshape(*index.shape, -1), mode="promise_in_bounds")

        return body

    for first, last, size in segments:

        def step(total, block, size=size):
            return _by_size(grid, block[1], size, branch, total, *block), None

        blocks = (rows.base, rows.sizes, gradients)
        total, _ = jax.lax.scan(step, total, tuple(part[first:last] for part in blocks))
    kept = total[:room].reshape(*grid.padded, -1).astype(product_dtype(dy.dtype))
    return grid.crop(kept)
