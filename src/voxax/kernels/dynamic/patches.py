"""Dynamic products in plain XLA: gather the taps of blocks of positions to patches, then multiply.

A patch is the row ``[taps * C]`` of all values that the taps of a position read. There are three
ways to read patches. :func:`run_blocks` gathers the patches of a block by indices. The number of
taps is chosen for each block at run time: there is a compiled branch for each size, and the largest
size in the block selects a branch. :func:`run_slices` reads a tile of positions as one shifted
slice for each tap, without indices. :func:`gather_dgrad` computes dX: each input position gathers
the gradients of the outputs that read it, so no position is written twice.

Taps that a position does not have read zeros, so the input's values there, such as NaN, have no
influence.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.kernels.dynamic.grid import (
    Grid,
    grid_of,
    ordered,
    row_steps,
    rows_within,
    unordered,
)
from voxax.kernels.kernel import Problem
from voxax.kernels.rows import options, zeros

Segments = Sequence[tuple[int, int, int | None]]
"""Ranges of blocks, ``(first, end, size)``, where no kernel size exceeds ``size``. If ``size`` is
None, the largest size of each block is found at run time."""


def run_blocks(
    problem: Problem,
    a: jax.Array,
    b: jax.Array,
    sizes: jax.Array,
    order: jax.Array | None,
    block: int,
    segments: Callable[[int], Segments] = lambda blocks: ((0, blocks, None),),
) -> jax.Array:
    """Run a dynamic product in blocks of output positions, with patches gathered by indices.

    Args:
      problem, a, b: the product and its operands, see :class:`voxax.kernels.kernel.Apply`.
      sizes: ``int32[M]``, kernel size of each output position.
      order: ``int32[M]``, the output positions in the order of the blocks; None is row-major.
      block: number of positions in a block.
      segments: function from the number of blocks to ranges of blocks, see :data:`Segments`. By
        default, the largest size of each block is found at run time.

    Returns:
      y, dx or dw, as described by ``problem``.
    """
    grid = grid_of(problem)
    block = max(1, min(block, grid.positions))
    rows = _Rows(grid, sizes, order, block)
    multiply = {"forward": _forward, "wgrad": _wgrad, "dgrad": _dgrad}[problem.product]
    return multiply(problem, grid, rows, a, b, segments(rows.blocks))


class _Rows:
    """The output positions, cut into blocks.

    ``base`` has the rows of their centers in the padded input, ``sizes`` their kernel sizes, both
    ``int32[blocks, block]``.
    """

    def __init__(self, grid: Grid, sizes: jax.Array, order: jax.Array | None, block: int):
        base, sizes = grid.base(), jnp.clip(sizes, 0, grid.largest)
        if order is not None:
            base, sizes = base[order], sizes[order]
        self.count, self.block = grid.positions, block
        self.blocks = -(-self.count // block)
        self.order = order
        self.base, self.sizes = self.split(base), self.split(sizes)

    def split(self, rows: jax.Array) -> jax.Array:
        """Cut ``rows [M, ...]`` into ``[blocks, block, ...]``; fill the last block with zeros."""
        missing = self.blocks * self.block - self.count
        rows = jnp.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
        return rows.reshape(self.blocks, self.block, *rows.shape[1:])

    def arrange(self, rows: jax.Array) -> jax.Array:
        """Sort ``rows [M, ...]`` by ``self.order``, and cut them into blocks as :meth:`split`."""
        return self.split(rows if self.order is None else rows[self.order])

    def restore(self, blocks: jax.Array) -> jax.Array:
        """Return the rows of ``blocks`` in their original order, ``[M, ...]``; undo ``arrange``."""
        rows = blocks.reshape(-1, *blocks.shape[2:])[: self.count]
        if self.order is None:
            return rows
        places = jnp.arange(self.count, dtype=self.order.dtype)
        inverse = jnp.zeros_like(self.order).at[self.order].set(places, unique_indices=True)
        return rows[inverse]


def clear_unused(dy: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return ``dy [..., C]`` with zeros where ``sizes [...]`` is 0: no NaN there has influence."""
    return jnp.where((sizes > 0)[..., None], dy, jnp.zeros((), dy.dtype))


def _by_size(grid: Grid, sizes: jax.Array, size: int | None, branch: Callable, *operands):
    """Run ``branch(n)(*operands)``, where n is the number of taps of kernel size ``size``.

    If ``size`` is None, it is the largest of ``sizes``, found at run time.
    """
    if size is not None:
        return branch(grid.counts[size])(*operands)
    branches = [branch(count) for count in grid.counts]
    return jax.lax.switch(jnp.max(sizes), branches, *operands)


def _index(grid: Grid, count: int, base: jax.Array, sizes: jax.Array, absent: int) -> jax.Array:
    """Return the row of the padded input that each position's tap reads, ``int32[block, count]``.

    Only the first ``count`` taps (kernel offsets) in the order of ``grid`` are included. ``base``
    and ``sizes``, ``int32[block]``, are the row of each position's center and its kernel size. Taps
    that this size lacks read row ``absent``.
    """
    index = base[:, None] + jnp.asarray(grid.shifts()[None, :count])
    # A tap that the position lacks reads zeros: a mask on the product would keep a NaN there.
    return jnp.where(sizes[:, None] >= jnp.asarray(grid.reach[None, :count]), index, absent)


def _source(grid: Grid, x: jax.Array) -> jax.Array:
    """Return ``x`` as rows of the padded input, followed by a row of zeros, ``[rows + 1, C]``."""
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
        def multiply(base, sizes):
            if not count:
                return zeros((rows.block, w.shape[2]), kind, source)
            # Taps are ordered by the size that reaches them, so a block multiplies a prefix.
            patches = _patches(grid, source, count, base, sizes)
            return jnp.matmul(patches, flat[: count * x.shape[1]], **wide).astype(kind)

        return multiply

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


def _summed(grid: Grid, rows: _Rows, dy, segments: Segments, branch: Callable, total) -> jax.Array:
    """Return ``total`` plus the terms of all blocks of output positions, for dgrad and wgrad.

    ``rows`` are the blocks. ``dy``, ``[blocks, block, C]``, has the gradients of their positions.
    ``branch(n)`` returns a function of ``(total, base, sizes, dy)`` that adds one block's terms for
    the first n kernel offsets.
    """
    for first, last, size in segments:

        def step(total, block, size=size):
            return _by_size(grid, block[1], size, branch, total, *block), None

        blocks = (rows.base, rows.sizes, dy)
        total, _ = jax.lax.scan(step, total, tuple(part[first:last] for part in blocks))
    return total


def _wgrad(problem: Problem, grid: Grid, rows: _Rows, x, dy, segments: Segments) -> jax.Array:
    source, gradients = _source(grid, x), clear_unused(rows.arrange(dy), rows.sizes)
    wide, channels = options(problem, x.dtype), x.shape[1]
    total = zeros((grid.counts[-1] * channels, dy.shape[1]), accumulator(x.dtype), source)

    def branch(count: int):
        def multiply(total, base, sizes, gradient):
            if not count:
                return total
            patches = _patches(grid, source, count, base, sizes)
            return total.at[: count * channels].add(jnp.matmul(patches.T, gradient, **wide))

        return multiply

    total = _summed(grid, rows, gradients, segments, branch, total)
    weight = total.reshape(-1, channels, dy.shape[1]).astype(product_dtype(x.dtype))
    return unordered(grid, weight)


def _dgrad(problem: Problem, grid: Grid, rows: _Rows, dy, w, segments: Segments) -> jax.Array:
    """Return dx ``[N, C_in]``: each block of output positions adds to the input rows that it reads.

    ``dy`` is ``[M, C_out]`` and ``w`` the layer's weight ``[K, C_in, C_out]``. ``rows`` are the
    blocks, ``segments`` bounds on their kernel sizes.
    """
    gradients, wide = rows.arrange(dy), options(problem, dy.dtype)
    flat = ordered(grid, w).reshape(-1, w.shape[2])
    cells = math.prod(grid.padded)
    total = zeros((cells + 1, w.shape[1]), accumulator(dy.dtype), dy)

    def branch(count: int):
        def multiply(total, base, sizes, gradient):
            if not count:
                return total
            sent = jnp.matmul(gradient, flat[: count * w.shape[1]].T, **wide)
            index = _index(grid, count, base, sizes, cells)
            return total.at[index].add(sent.reshape(*index.shape, -1), mode="promise_in_bounds")

        return multiply

    total = _summed(grid, rows, gradients, segments, branch, total)
    kept = total[:cells].reshape(*grid.padded, -1).astype(product_dtype(dy.dtype))
    return grid.crop(kept)


def run_slices(
    problem: Problem, a: jax.Array, b: jax.Array, sizes: jax.Array, block: int
) -> jax.Array:
    """Run a dynamic product in tiles of positions, where each tap of a tile is read as one slice.

    Args:
      problem, a, b: the product and its operands, see :class:`voxax.kernels.kernel.Apply`.
      sizes: ``int32[M]``, kernel size of each output position.
      block: the largest number of positions in a tile.

    Returns:
      y, dx or dw, as described by ``problem``.
    """
    grid = grid_of(problem)
    wide, kind = options(problem, a.dtype), product_dtype(a.dtype)
    sizes = sizes.reshape(grid.outputs)
    if problem.product == "dgrad":
        # dX[i] = sum_k dY[(i - o_k) / s] w_k^T: the taps are negated, and the lattice has zeros
        # between the outputs.
        tiles = _Tiles(grid.inputs, block, (1,) * len(grid.stride), -grid.taps, grid.reach)
        between = [(0, 0, 0), *((0, 0, s - 1) for s in grid.stride)]
        zero = jnp.zeros((), a.dtype)
        dy = jax.lax.pad(a.reshape(*grid.outputs, -1), zero, [*between, (0, 0, 0)])
        seen = jax.lax.pad(sizes, jnp.zeros((), sizes.dtype), between)
        dy, seen = tiles.margin(dy), tiles.margin(seen)
        flat = jnp.swapaxes(ordered(grid, b), 1, 2).reshape(-1, b.shape[1])

        def sent(place: jax.Array) -> jax.Array:
            patches = tiles.patches(dy, place, seen)
            return jnp.matmul(patches, flat, **wide).astype(kind)

        return tiles.assemble(jax.lax.map(sent, tiles.places()))
    tiles = _Tiles(grid.outputs, block, grid.stride, grid.taps, grid.reach)
    x = tiles.margin(a.reshape(*grid.inputs, -1))
    sizes = tiles.fill(sizes)
    if problem.product == "forward":
        flat = ordered(grid, b).reshape(-1, b.shape[2])

        def one(place: jax.Array) -> jax.Array:
            patches = tiles.patches(x, place, own=tiles.part(sizes, place))
            return jnp.matmul(patches, flat, **wide).astype(kind)

        return tiles.assemble(jax.lax.map(one, tiles.places()))
    dy = clear_unused(tiles.fill(b.reshape(*grid.outputs, -1)), sizes)
    shape = (grid.counts[-1] * a.shape[1], b.shape[1])

    def step(total: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
        patches = tiles.patches(x, place, own=tiles.part(sizes, place))
        gradient = tiles.part(dy, place).reshape(-1, b.shape[1])
        return total + jnp.matmul(patches.T, gradient, **wide), None

    total, _ = jax.lax.scan(step, zeros(shape, accumulator(a.dtype), a), tiles.places())
    return unordered(grid, total.reshape(-1, a.shape[1], b.shape[1]).astype(kind))


class _Tiles:
    """Cuts a grid ``[B, *spatial]`` of positions into boxes (tiles), and reads the input of one."""

    def __init__(
        self,
        extents: tuple[int, ...],
        block: int,
        stride: Sequence[int],
        taps: np.ndarray,
        reach: np.ndarray,
    ):
        self.extents, self.stride, self.taps, self.reach = extents, stride, taps, reach
        self.tile = _tile(extents[1:], block)
        self.number = tuple(-(-n // t) for n, t in zip(extents[1:], self.tile, strict=True))
        self.low = tuple(int(n) for n in np.maximum(0, -taps.min(0)))

    def places(self) -> jax.Array:
        """Return the indices of all tiles, ``int32[tiles, 1 + D]``: scene, then tile along axes."""
        counts = (self.extents[0], *self.number)
        return jnp.stack(jnp.unravel_index(jnp.arange(math.prod(counts)), counts), axis=1)

    def fill(self, array: jax.Array) -> jax.Array:
        """Pad ``array [B, *spatial, ...]`` with zeros to a whole number of tiles."""
        sides = zip(self.number, self.tile, self.extents[1:], strict=True)
        pads = [(0, 0), *((0, n * t - e) for n, t, e in sides)]
        return jnp.pad(array, pads + [(0, 0)] * (array.ndim - len(pads)))

    def margin(self, array: jax.Array) -> jax.Array:
        """Pad ``array [B, *spatial, ...]`` with zeros, so that all taps of all tiles are inside."""
        pads = [(0, 0)]
        high = np.maximum(0, self.taps.max(0))
        for axis, extent in enumerate(array.shape[1 : 1 + len(self.tile)]):
            last = (self.number[axis] * self.tile[axis] - 1) * self.stride[axis]
            pads.append((self.low[axis], max(0, int(last + high[axis]) - (extent - 1))))
        return jnp.pad(array, pads + [(0, 0)] * (array.ndim - len(pads)))

    def part(self, array: jax.Array, place: jax.Array) -> jax.Array:
        """Return the tile with index ``place`` of an array from :meth:`fill`, ``[*tile, ...]``."""
        starts = [place[0], *(place[1 + a] * t for a, t in enumerate(self.tile))]
        rest = array.shape[1 + len(self.tile) :]
        starts += [jnp.zeros((), place.dtype)] * len(rest)
        return jax.lax.dynamic_slice(array, starts, (1, *self.tile, *rest))[0]

    def patches(
        self,
        array: jax.Array,
        place: jax.Array,
        seen: jax.Array | None = None,
        own: jax.Array | None = None,
    ) -> jax.Array:
        """Return what all taps of a tile's positions read from ``array``, ``[positions, K * C]``.

        Args:
          array: a grid ``[B, *spatial, C]`` from :meth:`margin`.
          place: index of the tile, as from :meth:`places`.
          seen: for dgrad, the kernel sizes of the positions of ``array``. A tap gives zero if the
            position that it reads has a size without this tap.
          own: ``[*tile]``, kernel sizes of the tile's positions, used if ``seen`` is None. A tap
            gives zero for a position whose size lacks this tap.
        """
        around = self._around(array, place)
        sources = None if seen is None else self._around(seen, place)
        parts = []
        for tap, reach in zip(self.taps, self.reach, strict=True):
            values = self._shifted(around, tap)
            sizes = self._shifted(sources, tap) if sources is not None else own
            if sizes is not None:
                values = jnp.where((sizes >= reach)[..., None], values, jnp.zeros((), array.dtype))
            parts.append(values)
        return jnp.concatenate(parts, axis=-1).reshape(math.prod(self.tile), -1)

    def _around(self, array: jax.Array, place: jax.Array) -> jax.Array:
        high = np.maximum(0, self.taps.max(0))
        lengths = [
            (t - 1) * s + 1 + low + int(up)
            for t, s, low, up in zip(self.tile, self.stride, self.low, high, strict=True)
        ]
        sides = zip(self.tile, self.stride, strict=True)
        starts = [place[0], *(place[1 + a] * (t * s) for a, (t, s) in enumerate(sides))]
        rest = array.shape[1 + len(self.tile) :]
        starts += [jnp.zeros((), place.dtype)] * len(rest)
        return jax.lax.dynamic_slice(array, starts, (1, *lengths, *rest))[0]

    def _shifted(self, around: jax.Array, tap: np.ndarray) -> jax.Array:
        index = tuple(
            slice(int(low + o), int(low + o) + (t - 1) * s + 1, s)
            for low, o, t, s in zip(self.low, tap, self.tile, self.stride, strict=True)
        )
        return around[index]

    def assemble(self, tiles: jax.Array) -> jax.Array:
        """Turn results of tiles, ``[tiles, positions, C]``, into rows of the grid, row-major."""
        ndim, channels = len(self.tile), tiles.shape[-1]
        grid = tiles.reshape(self.extents[0], *self.number, *self.tile, channels)
        pairs = itertools.chain.from_iterable((1 + a, 1 + ndim + a) for a in range(ndim))
        grid = grid.transpose(0, *pairs, 1 + 2 * ndim)
        sides = zip(self.number, self.tile, strict=True)
        grid = grid.reshape(self.extents[0], *(n * t for n, t in sides), channels)
        inner = tuple(slice(0, extent) for extent in self.extents)
        return grid[inner].reshape(-1, channels)


def _tile(extents: tuple[int, ...], block: int) -> tuple[int, ...]:
    """Return the shape of a box of at most ``block`` positions; it fills the last axes first."""
    tile, left = [], max(1, block)
    for extent in reversed(extents):
        tile.append(max(1, min(extent, left)))
        left //= tile[-1]
    return tuple(reversed(tile))


def gather_dgrad(
    problem: Problem, dy: jax.Array, w: jax.Array, sizes: jax.Array, block: int, skip: bool
) -> jax.Array:
    """Return dX ``[N, C_in]``: each input position gathers ``dy`` of the outputs that read it.

    Args:
      problem: a dynamic dgrad.
      dy: ``[M, C_out]``, the gradients of the outputs.
      w: ``[K, C_in, C_out]``, the weight.
      sizes: ``int32[M]``, kernel size of each output position.
      block: number of input positions computed together.
      skip: whether a block skips the taps of sizes larger than any that its positions need.
        Otherwise every block multiplies all taps.
    """
    grid = grid_of(problem)
    rows = math.prod(grid.inputs)
    block = max(1, min(block, rows))
    blocks = -(-rows // block)
    source, seen, base, shifts = lattice(grid, dy, sizes)
    base = jnp.pad(base, (0, blocks * block - rows)).reshape(blocks, block)
    flat = jnp.swapaxes(ordered(grid, w), 1, 2).reshape(-1, w.shape[1])
    wide, kind, channels = options(problem, dy.dtype), product_dtype(dy.dtype), dy.shape[1]
    reach = jnp.asarray(grid.reach)[None, :]

    def branch(count: int):
        def multiply(index: jax.Array) -> jax.Array:
            taken = source.at[index[:, :count]].get(mode="promise_in_bounds")
            patches = taken.reshape(block, count * channels)
            return jnp.matmul(patches, flat[: count * channels], **wide).astype(kind)

        return multiply

    def one(center: jax.Array) -> jax.Array:
        index = center[:, None] + jnp.asarray(shifts)[None, :]
        # Whether a tap is active depends on the size of the output that reads this position.
        active = seen.at[index].get(mode="promise_in_bounds") >= reach
        index = jnp.where(active, index, source.shape[0] - 1)
        if not skip:
            return branch(grid.counts[-1])(index)
        furthest = jnp.max(jnp.where(active, reach, 0))
        return jax.lax.switch(furthest, [branch(count) for count in grid.counts], index)

    out = jax.lax.map(one, base)
    return out.reshape(-1, w.shape[1])[:rows]


def lattice(
    grid: Grid, dy: jax.Array, sizes: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, np.ndarray]:
    """Place gradients and sizes of outputs on the input's grid with a margin, for ``gather_dgrad``.

    Output position u is placed at ``u * stride``. Arguments are as for :func:`gather_dgrad`.

    Returns:
      Four arrays. ``[R + 1, C_out]``: ``dy`` for the R positions of this grid, zero where there is
      no output, then a row of zeros. ``int32[R]``: the kernel sizes, 0 where there is no output.
      ``int32[N]``: the index among the R positions of each input position. ``int32[K]``: for each
      tap, what to add to this index to find the output that reads the input by this tap.
    """
    extents, steps = np.asarray(grid.outputs[1:]), np.asarray(grid.stride)
    low = np.maximum(0, grid.taps.max(0))
    last = np.asarray(grid.inputs[1:]) - 1 - grid.taps.min(0)
    high = np.maximum(0, last - (extents - 1) * steps)
    sides = [
        (0, 0, 0),
        *((int(a), int(b), int(s) - 1) for a, b, s in zip(low, high, steps, strict=True)),
    ]

    def onto_lattice(rows: jax.Array) -> jax.Array:
        rows = rows.reshape(*grid.outputs, *rows.shape[1:])
        every = sides + [(0, 0, 0)] * (rows.ndim - len(sides))
        return jax.lax.pad(rows, jnp.zeros((), rows.dtype), every)

    wide = onto_lattice(dy)
    shape = wide.shape[:-1]
    source = wide.reshape(-1, dy.shape[1])
    source = jnp.concatenate([source, jnp.zeros((1, dy.shape[1]), dy.dtype)])
    seen = onto_lattice(jnp.clip(sizes, 0, grid.largest)).reshape(-1)
    taps = -(grid.taps @ row_steps(shape)[1:])
    return source, seen, rows_within(shape, grid.inputs, low), taps.astype(np.int32)
